"""What every provider promises: one suite, run on each of them."""
