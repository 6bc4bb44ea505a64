# Recipes for working on hastetrio; `just` lists them.

export PATH := justfile_directory() / ".venv/bin" + ":" + env("PATH")

[private]
default:
    @just --list

# The tests: under 5 minutes, on an embedded PostgreSQL
test *args:
    pytest -m "not slow" {{ args }}

# What `just test` leaves out: real faults, foreign clients, large tables
test-slow *args:
    pytest -m slow {{ args }}

# All tests
test-all *args: (test args) (test-slow args)

# Real workers, random kills and database restarts, then an audit: `just soak --seconds 600`
soak *args:
    python -m tools.soak {{ args }}

# Ours against other packages and against the database's own ceiling; 10 minutes
bench-peers *args:
    python -m benchmarks.peers {{ args }}

# What grows with the backlog, kinds, workers and jobs held; needs `pip install -e '.[bench]'`
bench-growth *args:
    python -m benchmarks.growth {{ args }}

# Status polls against a server with a worker in it, and how late they make its renewals
bench-polls *args:
    python -m benchmarks.polls {{ args }}

# The documentation site, into build/docs; every warning is an error
docs *args:
    sphinx-build -W --keep-going -q -b html docs build/docs {{ args }}

# What each thing that a handler may ask for costs a job; 2 minutes
bench-features *args:
    python -m benchmarks.features {{ args }}

# Formatting, lint, types, and the documentation
check: && docs
    ruff format --check .
    ruff check .
    mypy

# Mend what `check` can mend by itself
fix:
    ruff format .
    ruff check --fix .
