"""What the bridge refuses, and the hints. Run in a child, as `bridged.py` is."""

from __future__ import annotations

import asyncio
import socket
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import assert_type

import psycopg.waiting
import pytest
import trio

from hastetrio._asyncio_hints import add_asyncio_hint
from hastetrio._asyncio_imports import holds_a_copy
from hastetrio.asyncio_bridge import AsyncioBridgeError, run_asyncio

from .bridged import fetch

import trio_asyncio  # type: ignore[import-untyped, unused-ignore]  # isort: skip


async def test_trio_code_awaited_in_asyncio_code_is_told() -> None:
    """The words of asyncio are `Task got bad yield`."""
    with pytest.raises(AsyncioBridgeError, match=r"trio_asyncio\.trio_as_aio") as caught:
        await run_asyncio(trio.sleep, 1)
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_a_coroutine_is_refused() -> None:
    """The function is wanted; and Python does not complain about the coroutine as well."""
    with pytest.raises(TypeError, match=r"write run_asyncio\(function, argument\).*fetch"):
        await run_asyncio(fetch("ann"))  # type: ignore[arg-type]
    future: asyncio.Future[None] = asyncio.Future(loop=asyncio.SelectorEventLoop())
    future.get_loop().close()
    with pytest.raises(TypeError, match="it was given an awaitable, Future"):
        await run_asyncio(future)  # type: ignore[arg-type]


async def test_what_is_no_async_function_is_refused() -> None:
    """Each with what to do instead."""

    async def generate() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match="async function and its arguments, not int"):
        await run_asyncio(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"abs is none: it returned int.*context\.run_sync"):
        await run_asyncio(abs, -3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="async generator: iterate over it in an async function"):
        await run_asyncio(generate)  # type: ignore[arg-type]


async def test_arguments_are_checked_by_mypy() -> None:
    """`just check` fails where a line below needs no ignore, or needs another one."""

    async def double(number: int, text: str = "") -> float:
        return float(text or number)

    assert_type(await run_asyncio(double, 1), float)
    assert_type(await run_asyncio(double, 1, "2"), float)
    assert_type(await run_asyncio(lambda: double(1)), float)
    with pytest.raises(ValueError, match="could not convert"):
        await run_asyncio(double, "1", "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required"):
        await run_asyncio(double)  # type: ignore[call-arg, arg-type, unused-ignore]


def test_a_call_outside_of_trio_is_refused() -> None:
    """In plain asyncio, and where there is no loop at all."""
    with pytest.raises(AsyncioBridgeError, match="await the function itself"):
        asyncio.run(run_asyncio(fetch, "ann"))
    coroutine = run_asyncio(fetch, "ann")
    with pytest.raises(AsyncioBridgeError, match="inside of trio only"):
        coroutine.send(None)


async def test_a_call_inside_of_a_call_is_refused() -> None:
    """A loop under a callback of another one would make trio itself fail."""

    async def outer() -> str:
        return await run_asyncio(fetch, "ann")

    with pytest.raises(AsyncioBridgeError, match="from asyncio code: await the function itself"):
        await run_asyncio(outer)


def module_with_a_copy() -> types.ModuleType:
    """A library that was imported before the bridge."""
    module = types.ModuleType("some_library")
    # `_asyncio` has the originals.
    exec(  # noqa: S102
        "from _asyncio import get_running_loop\n"
        "async def ask(): return get_running_loop()\n"
        "async def wrap():\n"
        "    try: return get_running_loop()\n"
        "    except RuntimeError as error: raise OSError('no connection') from error",
        module.__dict__,
    )
    return module


@pytest.mark.parametrize("function", ["ask", "wrap", "grouped"])
async def test_a_library_imported_too_early_is_named(function: str) -> None:
    """Its own words are `no running event loop`, inside of one; or it hides them."""
    library = module_with_a_copy()

    async def grouped() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(library.ask())

    library.__dict__["grouped"] = grouped
    with pytest.raises(AsyncioBridgeError) as caught:
        await run_asyncio(getattr(library, function))
    assert str(caught.value).startswith("some_library finds no asyncio loop, because it was impo")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


async def test_an_error_that_only_sounds_like_it_is_let_through() -> None:
    """Code that asks from a thread has a mistake of its own."""

    async def ask() -> None:
        await asyncio.to_thread(asyncio.get_running_loop)

    with pytest.raises(RuntimeError, match="no running event loop"):
        await run_asyncio(ask)


async def test_psycopg_on_asyncio_is_told_to_be_imported_later() -> None:
    """The test run imported it first, as every worker with a database does."""
    if not holds_a_copy(vars(psycopg.waiting)):
        pytest.skip("this psycopg looks for its loop each time")
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = f"host=127.0.0.1 port={server.getsockname()[1]} connect_timeout=5"

        async def connect() -> None:
            await psycopg.AsyncConnection.connect(target)

        with pytest.raises(AsyncioBridgeError, match=r"psycopg\.waiting finds no asyncio loop"):
            await run_asyncio(connect)


async def test_asyncio_code_without_the_bridge_gets_a_hint() -> None:
    """A note below the error, whichever of its faces asyncio shows to trio."""

    async def in_a_group() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asyncio.sleep, 0)

    async def on_no_loop() -> None:
        # What `trio_asyncio.aio_as_trio` does.
        await trio_asyncio.current_loop.get().run_aio_coroutine(None)

    faces: list[Callable[[], Awaitable[object]]] = [
        partial(asyncio.sleep, 0),
        partial(asyncio.sleep, 1),
        partial(fetch, "ann"),
        on_no_loop,
        in_a_group,
    ]
    for face in faces:
        with pytest.raises(Exception) as caught:  # noqa: PT011  # they have nothing in common
            await face()
        add_asyncio_hint(caught.value)
        error: BaseException = caught.value
        if isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        assert "run_asyncio(function, argument)" in "".join(error.__notes__)
