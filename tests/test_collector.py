"""The garbage collector of a worker process."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc
from hastetrio import tune_collector

class Node:
    pass

loaded = len(gc.get_objects())
tune_collector()
assert gc.get_freeze_count() >= loaded * 0.9, gc.get_freeze_count()
collected = gc.get_stats()[0]["collections"]
for _ in range(20_000):
    node = Node()
    node.itself = node
assert gc.get_stats()[0]["collections"] == collected
for _ in range(80_000):
    node = Node()
    node.itself = node
assert gc.get_stats()[0]["collections"] > collected
assert gc.isenabled()
print("done")
"""


def test_what_is_loaded_is_left_alone_and_garbage_is_still_collected() -> None:
    """Collections get rarer, by as many objects as it says, and do not stop."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")
