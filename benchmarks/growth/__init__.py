"""How the cost of a job grows: with what waits, with kinds, workers, held jobs and dead rows."""
