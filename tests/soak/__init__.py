"""Tests of `tools/soak.py`."""
