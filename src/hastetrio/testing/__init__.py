"""What the tests of handler authors and chaos tests import.

`run_job` runs one job in virtual time, without a database. `FaultyProvider` wraps a provider and
breaks chosen calls: renewals that are killed, answers that are lost, leases that are taken.
"""

from hastetrio.testing._calls import CallName as CallName
from hastetrio.testing._calls import Fault as Fault
from hastetrio.testing._calls import RecordedCall as RecordedCall
from hastetrio.testing._calls import RenewalKilled as RenewalKilled
from hastetrio.testing._faults import FaultyProvider as FaultyProvider
from hastetrio.testing._hooks import silence_renewals as silence_renewals
from hastetrio.testing._run import run_job as run_job
