"""What hastetrio's speed is on this machine and this server: the command `hastetrio bench`.

It measures as a user's program would see it: through the public names of `hastetrio`,
`hastetrio.postgres` and `hastetrio.embedded` alone. `_run` goes through the sections of a `Plan`
in a database of its own (`_room`); `_throughput` and `_latency` measure in this process, `_watched`
in a worker process (`_process`, `_child`) whose statements a relay counts (`_wire`).
"""

from hastetrio.bench._plan import SECTIONS as SECTIONS
from hastetrio.bench._plan import BenchError as BenchError
from hastetrio.bench._plan import Plan as Plan
from hastetrio.bench._plan import Progress as Progress
