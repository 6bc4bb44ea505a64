"""What each thing that a handler may ask for costs a job."""
