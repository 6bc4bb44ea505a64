"""Importing trio-asyncio at the right moment, or saying why it cannot be imported.

trio-asyncio replaces functions of the module `asyncio` when it is imported, for the whole process
(https://trio-asyncio.readthedocs.io/en/latest/principles.html). A module that took its own copy of
one of them before that never sees the loops of trio-asyncio.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# `_asyncio` is where CPython keeps the functions in C. Those in Python look the others up when they
# are called, so that a copy of them does no harm; `current_task` is in C from 3.12 on.
_LOOKING_FOR_A_LOOP: Final = ("get_running_loop", "_get_running_loop", "current_task")

# They hold the originals by right.
_OWNERS: Final = frozenset({"asyncio", "_asyncio", "trio_asyncio"})

# These are loaded where nobody means to use them with asyncio: psycopg (from 3.3.5 on) by every
# worker with a database, anyio's half for asyncio by its plugin for pytest. What does use them is
# told when it is called.
_TOLERATED: Final = frozenset({"psycopg", "anyio"})

# A person needs one name to find the line to move.
_NAMED: Final = 3

# Python 3.12 and 3.13 warn of a class that trio-asyncio derives from; under -W error that would be
# the end of the import. https://github.com/python-trio/trio-asyncio/issues/152
_DEPRECATED: Final = "'AbstractChildWatcher' is deprecated"


def load_trio_asyncio() -> None:
    """Import trio-asyncio, which patches `asyncio` for this process.

    Raises:
        ImportError: This Python is too new for it, it is not installed, or a module has taken a
            function of asyncio before.
    """
    if sys.version_info >= (3, 14):
        # https://github.com/python-trio/trio-asyncio/issues/160
        raise ImportError(
            "hastetrio.asyncio_bridge does not work on Python 3.14, because trio-asyncio does not "
            "support it: run this worker on Python 3.11 to 3.13, or run the asyncio code as a "
            "process of its own with trio.run_process"
        )
    if early := early_importers():
        named = ", ".join(early[:_NAMED]) + (", ..." if len(early) > _NAMED else "")
        raise ImportError(
            "import hastetrio.asyncio_bridge first in the entry point: "
            f"{named} took get_running_loop or current_task from asyncio before trio-asyncio "
            "replaced it, and would find no running loop"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", _DEPRECATED, DeprecationWarning)
        try:
            importlib.import_module("trio_asyncio")
        except ModuleNotFoundError as error:
            if error.name != "trio_asyncio":
                raise
            raise ModuleNotFoundError(
                "hastetrio.asyncio_bridge needs trio-asyncio: pip install 'hastetrio[asyncio]'",
                name=error.name,
            ) from None


def early_importers() -> list[str]:
    """The loaded modules that hold a copy of what trio-asyncio replaces, but for the tolerated."""
    names = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _TOLERATED:
            continue
        # Not `vars()`: it would load a module that waits for its first use.
        try:
            attributes = object.__getattribute__(module, "__dict__")
        except AttributeError:
            continue
        if holds_a_copy(attributes):
            names.append(name)
    return sorted(names)


def holds_a_copy(attributes: Mapping[str, object]) -> bool:
    """Whether a module with these attributes took a function that trio-asyncio replaces."""
    if str(attributes.get("__name__")).partition(".")[0] in _OWNERS:
        return False
    builtin = sys.modules.get("_asyncio")
    found = (getattr(builtin, name, None) for name in _LOOKING_FOR_A_LOOP)
    # By identity: values of other modules may answer `==` with anything.
    originals = {id(function) for function in found if function is not None}
    return any(id(value) in originals for value in list(attributes.values()))
