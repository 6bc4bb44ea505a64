"""The keys that tokens are verified with: a JSON Web Key Set (RFC 7517), and one kept in a file."""

from __future__ import annotations

import json
import logging
import math
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import jwt
import trio

from hastetrio._errors import ConfigError

_logger = logging.getLogger("hastetrio.fhir")

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""The signatures that can be configured: all asymmetric, each with one type of key."""

SET_LIMIT: Final = 256 * 1024
"""The most bytes of a key set: several hundred keys, loaded on the event loop in some 20 ms."""

# The key type and curve each algorithm works with: RFC 7518 sections 3.3 and 3.4, and RFC 8037
# section 3.1 (with Ed25519, the only curve of the two that libraries agree on).
_FITS: Final[Mapping[tuple[str, str | None], str]] = {
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}

# RFC 7518 section 3.3: "A key of size 2048 bits or larger MUST be used".
_SHORTEST_RSA: Final = 2048

# Seconds between two looks at a file: a look costs some microseconds, but each request would pay.
_LOOK_EVERY: Final = 1.0


class BadKeySet(Exception):
    """A text that is no key set; the text of the error says why, without quoting it."""


@attrs.frozen
class Key:
    """A public key, fit for one algorithm."""

    kid: str | None
    algorithm: str
    jwk: jwt.PyJWK = attrs.field(repr=False)


@attrs.frozen(eq=False)
class KeySet:
    """The keys of one moment. Two sets are never equal, so that each reading is told apart."""

    keys: tuple[Key, ...]

    def key_for(self, algorithm: str, kid: str | None) -> Key | None:
        """The key a token was signed with, as its header says; None where that names none.

        It is the first of that name and of the algorithm's type. Where no name decides, because
        the token or the key has none, it is the only one of its type.
        """
        fitting = [key for key in self.keys if key.algorithm == algorithm]
        if kid is not None:
            for key in fitting:
                if key.kid == kid:
                    return key
        if len(fitting) == 1 and (kid is None or fitting[0].kid is None):
            return fitting[0]
        return None


class KeySource(Protocol):
    """Where keys come from."""

    async def current(self) -> KeySet:
        """The keys as they are believed to be now.

        Raises:
            AuthenticatorUnavailable: There are none to be had.
        """

    async def renewed(self, old: KeySet) -> KeySet:
        """The keys, looked up anew because `old` lacks one; `old` where it is too early for that.

        Raises:
            AuthenticatorUnavailable: They cannot be looked up.
        """


def parse_key_set(text: bytes) -> KeySet:
    """The usable keys of a JSON Web Key Set.

    A key is left out when it is none of the types of `ALGORITHMS`, when its `use`, `key_ops` or
    `alg` say that it is for something else, when it is private or shared (`oct`), or broken: one
    set often serves several purposes (RFC 7517 section 5 says to ignore unknown ones).

    Raises:
        BadKeySet: It is too large, or no key set.
    """
    if len(text) > SET_LIMIT:
        raise BadKeySet(f"it has more than {SET_LIMIT:,} bytes")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeySet("it is not JSON") from None
    listed = value.get("keys") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise BadKeySet('it is no JSON Web Key Set: an object with an array "keys"')
    return KeySet(tuple(_usable(listed)))


def _usable(listed: Iterable[object]) -> Iterable[Key]:
    for data in listed:
        key = _key(data) if isinstance(data, dict) else None
        if key is not None:
            yield key


def _key(data: dict[str, Any]) -> Key | None:
    kty, crv, kid = data.get("kty"), data.get("crv"), data.get("kid")
    if not isinstance(kty, str) or not isinstance(crv, str | None):
        return None
    algorithm = _FITS.get((kty, None if kty == "RSA" else crv))
    operations = data.get("key_ops", ["verify"])
    if (
        algorithm is None
        or not isinstance(kid, str | None)
        or data.get("use", "sig") != "sig"
        or data.get("alg", algorithm) != algorithm
        or not isinstance(operations, list)
        or "verify" not in operations
        # The private half: whoever can read the set could sign with it.
        or "d" in data
    ):
        return None
    try:
        jwk = jwt.PyJWK(data, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
        return None
    if algorithm == "RS256" and jwk.key.key_size < _SHORTEST_RSA:
        return None
    return Key(kid, algorithm, jwk)


class JwksFile:
    """A key set in a file, read again when the file changes.

    A file that is half-written, broken or gone leaves the keys as they were, with one warning
    until it changes again. A sound one without any usable key takes all keys away.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or holds no usable key.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._looked = -math.inf
        try:
            self._seen = self._signature()
            self._keys = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read the key set {self.path}: {_cause(error)}") from None
        except BadKeySet as error:
            raise ConfigError(f"cannot use the key set {self.path}: {error}") from None
        if not self._keys.keys:
            raise ConfigError(
                f"the key set {self.path} has no key to verify tokens with: it needs the public "
                f"half of one for {', '.join(ALGORITHMS)}"
            )
        self._warned = self._seen

    async def current(self) -> KeySet:
        """The keys of the file, looked at within the last second."""
        now = trio.current_time()
        if not self._looked <= now < self._looked + _LOOK_EVERY:
            self._looked = now
            self._look()
        return self._keys

    async def renewed(self, old: KeySet) -> KeySet:  # noqa: ARG002
        """The keys of the file, looked at now."""
        self._look()
        return self._keys

    def _look(self) -> None:
        # On the event loop, in one piece: two callers cannot meet half-way, and a cancelled one
        # leaves nothing half-read.
        signature = self._signature()
        if signature == self._seen:
            return
        try:
            keys = self._read()
        except OSError as error:
            self._keep(signature, _cause(error))
            return
        except BadKeySet as error:
            self._keep(signature, str(error))
            return
        self._seen = self._warned = signature
        self._keys = keys
        if keys.keys:
            _logger.info("Read the key set %s anew: %d keys", self.path, len(keys.keys))
        else:
            _logger.warning(
                "The key set %s has no usable key any more: no token is accepted", self.path
            )

    def _keep(self, signature: tuple[int, ...] | None, why: str) -> None:
        # Tried again at the next look even if the file stays as it is: it may be the machine that
        # had no file descriptor left.
        if signature != self._warned:
            self._warned = signature
            _logger.warning("Keeping the earlier keys of %s: %s", self.path, why)

    def _signature(self) -> tuple[int, ...] | None:
        """What changes when the file does; None while there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        # A file moved into place can be as old and as long as the one before; its inode is another.
        return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    def _read(self) -> KeySet:
        # A pipe or a device could keep the event loop waiting for ever.
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise BadKeySet("it is not a regular file")
        with self.path.open("rb") as file:
            return parse_key_set(file.read(SET_LIMIT + 1))


def _cause(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
