"""Tests of the bundled handler of `$export`."""
