"""The HTTP face, in this process: requests, answers, and what is stored between them."""
