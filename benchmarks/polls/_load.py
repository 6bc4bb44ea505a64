"""Asks for statuses as fast as they are answered, over connections that are kept open.

    python -m benchmarks.polls._load HOST PORT CONNECTIONS < paths

One process, one thread, plain sockets: an HTTP library would take more of the second core than the
answers are worth, and wrk asks for one path unless told otherwise in Lua. Each connection has one
request under way, as wrk has it. It ends when its input does, and prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")

# Latencies kept; beyond them every second one goes, so that memory has a bound.
_MOST: Final = 2_000_000


class _Connection:
    """One connection, with one request under way."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent = 0.0

    def ask(self, path: str) -> None:
        """Send a request."""
        self.received = b""
        self.sent = time.perf_counter()
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def status(self) -> int | None:
        """Read what has come; the status once the answer is complete."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed a connection")
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return None
        found = _LENGTH.search(head + b"\r\n")
        if found is None:
            raise ConnectionError(f"an answer without a length: {head[:200]!r}")
        return int(head[9:12]) if len(body) >= int(found[1]) else None


class Load:
    """What was asked, and how it was answered.

    Args:
        host: The server's host.
        port: The server's port.
        connections: How many are used at once.
        paths: What is asked, in turn.
    """

    def __init__(self, host: str, port: int, connections: int, paths: Iterator[str]) -> None:
        self._paths = paths
        self._connections = [_Connection(host, port) for _ in range(connections)]
        self._statuses: Counter[int] = Counter()
        self._latencies: list[float] = []

    def run(self, ends: int) -> dict[str, Any]:
        """Ask until the file descriptor `ends` can be read; the figures."""
        with selectors.DefaultSelector() as selector:
            selector.register(ends, selectors.EVENT_READ, None)
            for one in self._connections:
                selector.register(one.socket, selectors.EVENT_READ, one)
                one.ask(next(self._paths))
            began = time.perf_counter()
            is_over = False
            while not is_over:
                for key, _ in selector.select():
                    if key.data is None:
                        is_over = True
                    else:
                        self._look(key.data)
            seconds = time.perf_counter() - began
        for one in self._connections:
            one.socket.close()
        return self._figures(seconds)

    def _look(self, connection: _Connection) -> None:
        status = connection.status()
        if status is None:
            return
        self._statuses[status] += 1
        self._latencies.append(time.perf_counter() - connection.sent)
        if len(self._latencies) > _MOST:
            del self._latencies[::2]
        connection.ask(next(self._paths))

    def _figures(self, seconds: float) -> dict[str, Any]:
        ordered = sorted(self._latencies) or [0.0]

        def quantile(share: float) -> float:
            return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000

        return {
            "seconds": seconds,
            "statuses": {str(status): count for status, count in sorted(self._statuses.items())},
            "p50_ms": quantile(0.5),
            "p99_ms": quantile(0.99),
            "worst_ms": ordered[-1] * 1000,
        }


def main() -> None:
    """Read the paths up to an empty line, ask until the input ends, print the figures."""
    host, port, connections = sys.argv[1:]
    paths = []
    # Unbuffered: the end of the input is waited for below.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as given:
        while line := given.readline().decode().strip():
            paths.append(line)
    load = Load(host, int(port), int(connections), cycle(paths))
    print("asking", flush=True)
    print(json.dumps(load.run(sys.stdin.fileno())))


if __name__ == "__main__":
    main()
