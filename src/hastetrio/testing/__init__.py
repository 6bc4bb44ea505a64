"""What the tests of handler authors and chaos tests import.

`run_job` runs one job in virtual time, without a database, and shows what it reported and logged;
`run_stored_job` runs one of any provider, for what needs a real database.
`assert_completed`, `assert_failed` and `assert_retried` say what went wrong where it went wrong.
`FaultyProvider` wraps a provider and breaks chosen calls: renewals that are killed, answers that
are lost, leases that are taken. A pytest plugin, found by pytest itself, brings the fixtures
`job_provider`, `faults` and `job_database`; nothing else in here needs pytest.
"""

from typing import TYPE_CHECKING

from hastetrio.testing._calls import CallName as CallName
from hastetrio.testing._calls import Fault as Fault
from hastetrio.testing._calls import RecordedCall as RecordedCall
from hastetrio.testing._calls import RenewalKilled as RenewalKilled
from hastetrio.testing._faults import FaultyProvider as FaultyProvider
from hastetrio.testing._finished import FinishedJob as FinishedJob
from hastetrio.testing._hooks import silence_renewals as silence_renewals
from hastetrio.testing._run import run_job as run_job
from hastetrio.testing._stored import run_stored_job as run_stored_job

if TYPE_CHECKING:
    from hastetrio.testing._assertions import assert_completed as assert_completed
    from hastetrio.testing._assertions import assert_failed as assert_failed
    from hastetrio.testing._assertions import assert_retried as assert_retried

_ASSERTIONS = ("assert_completed", "assert_failed", "assert_retried")


def __getattr__(name: str) -> object:
    # Imported when first asked for: pytest rewrites only what is imported after its plugins, and
    # the plugin's longer name, `hastetrio.testing.plugin`, imports this package first.
    if name in _ASSERTIONS:
        from hastetrio.testing import _assertions

        return getattr(_assertions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ASSERTIONS})
