"""hastetrio's pytest plugin under the name to give in `pytest_plugins` or after `-p`.

pytest finds it by itself, through its entry point; this name is for runs that turn that off
(`PYTEST_DISABLE_PLUGIN_AUTOLOAD`). The code is in a module of its own outside of this package,
because importing anything in here imports the whole of hastetrio and of trio.
"""

from _hastetrio_pytest import _hastetrio_databases, faults, job_database, job_provider

__all__ = ("_hastetrio_databases", "faults", "job_database", "job_provider")
