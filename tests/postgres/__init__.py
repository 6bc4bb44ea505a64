"""Tests of what only a real PostgreSQL can show; the contract suite holds the rest."""
