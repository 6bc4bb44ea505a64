"""Programs that are used on this repository, and are no part of what is installed."""
