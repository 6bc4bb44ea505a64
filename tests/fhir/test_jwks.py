"""Which keys of a set are used, and how a file of them is followed."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from trio.testing import MockClock

from hastetrio._errors import ConfigError
from hastetrio.fhir import _jwks
from hastetrio.fhir._jwks import SET_LIMIT, BadKeySet, JwksFile, parse_key_set

from . import tokens


def kids(text: bytes) -> list[str | None]:
    """The names of the usable keys of a set."""
    return [key.kid for key in parse_key_set(text).keys]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"use": "sig"},
        {"key_ops": ["verify"]},
        {"key_ops": ["sign", "verify"]},
        {"alg": "ES256"},
        {"x5c": ["not looked at"], "ext": True},
    ],
)
def test_key_for_signatures_is_used(more: dict[str, Any]) -> None:
    """A key is used when all it says about itself fits."""
    assert kids(tokens.key_set(tokens.jwk(**more))) == ["k1"]


@pytest.mark.parametrize(
    "more",
    [
        {"use": "enc"},
        {"use": ["sig"]},
        {"use": None},
        {"key_ops": ["sign"]},
        {"key_ops": []},
        {"key_ops": "verify"},
        {"alg": "ES384"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": ""},
        {"kid": 7},
        {"kty": "RSA"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": ["EC"]},
        {"kty": None},
        {"crv": "P-384"},
        {"crv": None},
        {"crv": ["P-256"]},
        {"x": "AAAA"},
        {"x": 7},
        {"y": None},
    ],
)
def test_unfit_key_is_left_out_and_its_neighbours_stay(more: dict[str, Any]) -> None:
    """A key that is for something else, or broken, is as if it were not there."""
    unfit = {**tokens.jwk(kid="unfit"), **more}
    assert kids(tokens.key_set(unfit, tokens.jwk(kid="fit", number=1))) == ["fit"]


def test_keys_of_other_types_are_left_out() -> None:
    """Shared secrets, other curves, short RSA keys and private keys verify nothing here."""
    others: list[Any] = [
        {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
        ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True),
        ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True),
        OKPAlgorithm.to_jwk(ed448.Ed448PrivateKey.generate().public_key(), as_dict=True),
        RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True),  # noqa: S505
        *(tokens.private_jwk(one) for one in _jwks.ALGORITHMS),
        "no key",
        None,
        [],
    ]
    assert kids(tokens.key_set(*others)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no JSON Web Key Set"),
        (b"7", "no JSON Web Key Set"),
        (b"{}", "no JSON Web Key Set"),
        (b'{"keys": {}}', "no JSON Web Key Set"),
        (b" " * SET_LIMIT + b'{"keys": []}', "more than 262,144 bytes"),
    ],
)
def test_what_is_no_key_set_is_refused(text: bytes, why: str) -> None:
    """The error says what is wrong and quotes nothing."""
    with pytest.raises(BadKeySet, match=why):
        parse_key_set(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@given(
    st.sampled_from(_jwks.ALGORITHMS),
    st.dictionaries(
        st.sampled_from(["kty", "crv", "n", "e", "x", "y", "use", "key_ops", "alg", "kid"]), _JSON
    ),
)
def test_damaged_key_is_left_out_or_used(algorithm: str, damage: dict[str, Any]) -> None:
    """Whatever stands in a key's members, a set with it is read without an error."""
    parse_key_set(tokens.key_set({**tokens.jwk(algorithm), **damage}))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'])
def test_file_without_keys_is_refused_at_once(tmp_path: Path, text: bytes) -> None:
    """A server that could believe nobody does not start."""
    path = tmp_path / "jwks.json"
    path.write_bytes(text)
    _check_refused(path)


def test_file_that_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    """Missing, a folder, a loop, a name no file can have: one line that names the file."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path / "missing", tmp_path, loop, tmp_path / "a\0b"):
        _check_refused(path)


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would never end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert "not a regular file" in _check_refused(path)


def test_private_key_in_a_file_is_refused_with_advice(tmp_path: Path) -> None:
    """Whoever puts the wrong half there is told which half is needed, and the key is not shown."""
    path = tmp_path / "jwks.json"
    path.write_bytes(tokens.key_set(tokens.private_jwk()))
    text = _check_refused(path)
    assert "public half" in text
    assert tokens.private_jwk()["d"] not in text


def _check_refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        JwksFile(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


class Kept:
    """A key set in a file, and the clock that says when it is looked at."""

    def __init__(self, path: Path, clock: MockClock) -> None:
        self.path = path
        self.clock = clock
        self.write("first")
        self.source = JwksFile(path)

    def write(self, *kids: str) -> None:
        """Replace the file's keys, in place."""
        self.path.write_bytes(tokens.key_set(*(tokens.jwk(kid=kid) for kid in kids)))

    async def kids(self) -> list[str | None]:
        """The names of the keys, a second later."""
        self.clock.jump(1)
        return [key.kid for key in (await self.source.current()).keys]


@pytest.fixture
def kept(tmp_path: Path, mock_clock: MockClock) -> Kept:
    """A file with one key; a test asks for the clock too, or it does not run by it."""
    return Kept(tmp_path / "jwks.json", mock_clock)


async def test_changed_file_is_read_again(kept: Kept, mock_clock: MockClock) -> None:
    """Written in place or moved into place, its keys are those used from the next look on."""
    assert await kept.kids() == ["first"]
    before = await kept.source.current()
    # As it is, it is not read again: all remembered tokens would be verified anew each second.
    mock_clock.jump(1)
    assert await kept.source.current() is before
    kept.write("second", "third")
    assert await kept.kids() == ["second", "third"]
    new = kept.path.with_suffix(".new")
    # As long and as old as the one before.
    new.write_bytes(kept.path.read_bytes().replace(b"third", b"fifth"))
    shutil.copystat(kept.path, new)
    new.rename(kept.path)
    assert await kept.kids() == ["second", "fifth"]


async def test_file_is_looked_at_once_a_second(kept: Kept, mock_clock: MockClock) -> None:
    """Requests in between do not pay for a look; one whose key is unknown has one made at once."""
    before = await kept.source.current()
    kept.write("second")
    mock_clock.jump(0.9)
    assert await kept.source.current() is before
    assert await kept.source.renewed(before) is not before


@pytest.mark.parametrize("broken", [b"", b'{"keys": [', b"[]", None])
async def test_broken_file_keeps_the_keys_with_one_warning(
    kept: Kept, mock_clock: MockClock, broken: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A file half-written or gone locks nobody out, and is used as soon as it is whole."""
    if broken is None:
        kept.path.unlink()
    else:
        kept.path.write_bytes(broken)
    for _ in range(3):
        assert await kept.kids() == ["first"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(kept.path) in caplog.text
    kept.write("second")
    assert await kept.kids() == ["second"]


async def test_file_that_could_not_be_opened_is_tried_again(
    kept: Kept,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A new file that could not be opened at that moment is read at a later look."""

    def full(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    kept.write("second")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        assert await kept.kids() == ["first"]
        assert await kept.kids() == ["first"]
    assert "Too many open files" in caplog.text
    assert len(caplog.records) == 1
    assert await kept.kids() == ["second"]


async def test_emptied_set_takes_all_keys_away(
    kept: Kept, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A sound set without keys is a decision, unlike a broken one."""
    kept.path.write_bytes(json.dumps({"keys": []}).encode())
    assert await kept.kids() == []
    assert caplog.records[0].levelno == logging.WARNING
