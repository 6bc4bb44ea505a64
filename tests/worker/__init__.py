"""The worker's tests, in virtual time."""
