"""What status polls cost the leases: `python -m benchmarks.polls`.

_run starts _server (`serve --worker`), then _load (another process), and reads _figures.
"""
