"""The command line: `hastetrio`, and `python -m hastetrio`.

Thin: a command reads its settings, opens a provider, calls the library and prints. What each
command needs is imported when it runs, so that `--help` and mistakes are answered at once.
"""

from hastetrio.cli._app import main as main
