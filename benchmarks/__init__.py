"""Measurements of hastetrio: against its peers, and as its load grows."""
