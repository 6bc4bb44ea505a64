"""Clients that other people wrote, against a server process: the proof from outside."""
