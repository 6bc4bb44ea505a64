"""Jobs in PostgreSQL: the only rooms that speak SQL.

`_provider` keeps the storage protocol; `_batch` turns waiting calls into statements; `_unit`
bounds and shields each call; `_connection` drives psycopg with trio; `_listen` receives wake-ups;
`_migrate` makes the tables. None of them imports the worker.
"""

from hastetrio.postgres._connection import TrioConnection as TrioConnection
from hastetrio.postgres._connection import check_dsn as check_dsn
from hastetrio.postgres._connection import connect as connect
from hastetrio.postgres._connection import display_dsn as display_dsn
from hastetrio.postgres._overview import Holder as Holder
from hastetrio.postgres._overview import KindWaiting as KindWaiting
from hastetrio.postgres._overview import OldestTransaction as OldestTransaction
from hastetrio.postgres._overview import QueueOverview as QueueOverview
from hastetrio.postgres._overview import StatusCount as StatusCount
from hastetrio.postgres._provider import PostgresJobProvider as PostgresJobProvider
