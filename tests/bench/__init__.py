"""Tests of the benchmark's parts; the command itself is tested in `tests/cli`."""
