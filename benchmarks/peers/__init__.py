"""The same no-op jobs drained by hastetrio, by its peers, and by pgbench alone."""
