"""Tests of `hastetrio.testing`: what the tests of handler authors rest on."""
