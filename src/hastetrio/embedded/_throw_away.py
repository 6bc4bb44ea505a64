"""A server for a test or a benchmark: in a folder of its own, thrown away with what it holds."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hastetrio.embedded._supervisor import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Seconds to wait for the end of a server that was told to leave at once.
_PATIENCE: Final = 20.0


@contextmanager
def throw_away_server(options: Sequence[str] = ()) -> Iterator[EmbeddedPostgres]:
    """A server of the block's own, not started yet; afterwards it and its folder are gone.

    It blocks, at its end for up to 20 s: call it in a thread where others must not wait.

    Args:
        options: Server settings such as "fsync=off".
    """
    # Not in a folder of a test framework's: started by root, the server runs as another account, to
    # which that is closed.
    root = Path(tempfile.mkdtemp(prefix="hastetrio-"))
    try:
        root.chmod(0o755)
        server = EmbeddedPostgres(root, options=options)
        try:
            yield server
        finally:
            # At once, without a checkpoint of what is thrown away.
            if pid := server.server_pid():
                os.kill(pid, signal.SIGQUIT)
            server.stop()
            server.wait_stopped(_PATIENCE)
    finally:
        shutil.rmtree(root, ignore_errors=True)
