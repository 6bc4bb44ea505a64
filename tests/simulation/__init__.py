"""Workers, clients and faults in virtual time, drawn from one number."""
