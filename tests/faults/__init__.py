"""Faults put in on purpose: the database, the network, other processes, and handlers themselves."""
