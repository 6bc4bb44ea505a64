"""A user of the embedded server, as a process of its own that tests can kill.

Arguments: the root, then what to leave running ("", "fork" or "spawn"), then server options. Says
one line of JSON when the server answers (or what is wrong), and lets go when its input ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from hastetrio.embedded import EmbeddedPostgres, EmbeddedUnavailable


def leave_child(how: str) -> int | None:
    """A child that outlives this process, until a test kills it."""
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        return pid
    if how == "spawn":
        code = "import signal; signal.pause()"
        return subprocess.Popen([sys.executable, "-c", code], close_fds=False).pid
    return None


def main(root: str, child: str, *options: str) -> None:
    """Hold a server until the input ends."""
    server = EmbeddedPostgres(Path(root), options=options)
    try:
        conninfo = server.start()
    except EmbeddedUnavailable as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    report = {"conninfo": conninfo, "server": server.server_pid(), "child": leave_child(child)}
    print(json.dumps(report), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
