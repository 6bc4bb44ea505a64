"""Random histories of clients and workers on the providers, each step checked."""
