"""Keys that are fetched: a JSON Web Key Set behind a URL, kept and renewed."""

from __future__ import annotations

import ipaddress
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from hastetrio._errors import ConfigError
from hastetrio.fhir._callers import AuthenticatorUnavailable
from hastetrio.fhir._jwks import SET_LIMIT, BadKeySet, KeySet, parse_key_set

_logger = logging.getLogger("hastetrio.fhir")

# Seconds. Issuers announce a key well before they sign with it, and a withdrawn one should not be
# believed much longer: PyJWT's own client takes five minutes too.
_RENEW_AFTER: Final = 300.0

# Seconds that keys are believed while the URL is away: an outage of the issuer is not ours, but a
# key withdrawn meanwhile must not live for ever.
_BELIEVE_FOR: Final = 3600.0

# Seconds between two fetches: after one that succeeded (tokens that name unknown keys would
# otherwise have us ask the issuer as often as anybody likes), and after one that failed.
_PAUSE: Final = 30.0
_FAILED_PAUSE: Final = 5.0

# Seconds one read of the socket may take, the whole answer may take, and a caller waits for it.
_READ_LIMIT: Final = 5.0
_FETCH_LIMIT: Final = 10.0

# Seconds after which a fetch that still has not ended is given up (a name server may hold its
# thread longer than any limit of a socket), so that another one can be tried.
_LOST_AFTER: Final = 60.0

_UNAVAILABLE: Final = "the issuer's keys are not to be had"


@attrs.define(eq=False)
class _Fetch:
    """A fetch under way."""

    started: float
    ended: trio.Event = attrs.field(factory=trio.Event)


class JwksUrl:
    """A key set behind a URL. It belongs to one event loop.

    The keys are fetched when they are first needed, again after five minutes, and when a token
    names one that is not among them (at most every 30 s). One fetch serves all callers: it runs in
    a thread of its own, and whoever waits for it can be cancelled without disturbing the others.
    While the URL is away, the keys last fetched are believed for an hour.

    Args:
        url: Where it is: https, or http on this machine's loopback interface.

    Raises:
        ConfigError: It is no such URL.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked(url)
        # A query can be a secret of its own.
        self._shown = url.partition("?")[0]
        self._keys: KeySet | None = None
        self._fetched = 0.0
        self._tried: float | None = None
        self._failed = False
        self._fetch: _Fetch | None = None

    async def current(self) -> KeySet:
        """The keys, at most five minutes old, or an hour while the URL is away.

        Cancellation: a fetch under way goes on, for whoever comes next.

        Raises:
            AuthenticatorUnavailable: There are none, or only older ones.
        """
        if not self._are_younger_than(_RENEW_AFTER):
            fetch = self._started_fetch(_FAILED_PAUSE)
            # Nobody waits again and again for an issuer that does not answer.
            if fetch is not None and not (self._failed and self._are_younger_than(_BELIEVE_FOR)):
                await self._wait(fetch)
        if self._keys is None or not self._are_younger_than(_BELIEVE_FOR):
            raise AuthenticatorUnavailable(_UNAVAILABLE)
        return self._keys

    async def renewed(self, old: KeySet) -> KeySet:
        """The keys, fetched since `old` was; `old` where the last fetch was just now.

        Cancellation: a fetch under way goes on, for whoever comes next.

        Raises:
            AuthenticatorUnavailable: They cannot be fetched.
        """
        if self._keys is old:
            fetch = self._started_fetch(_FAILED_PAUSE if self._failed else _PAUSE)
            if fetch is not None:
                await self._wait(fetch)
        if self._keys is None or self._failed:
            raise AuthenticatorUnavailable(_UNAVAILABLE)
        return self._keys

    def _are_younger_than(self, seconds: float) -> bool:
        return self._keys is not None and trio.current_time() < self._fetched + seconds

    def _started_fetch(self, pause: float) -> _Fetch | None:
        """The fetch under way, else a new one; None within `pause` seconds of the last."""
        now = trio.current_time()
        if self._fetch is not None and now < self._fetch.started + _LOST_AFTER:
            return self._fetch
        if self._tried is not None and now < self._tried + pause:
            return None
        fetch = self._fetch = _Fetch(now)
        loop = trio.lowlevel.current_trio_token()

        def deliver(outcome: Any) -> None:  # noqa: ANN401  # a type of trio's own dependency
            result = outcome.unwrap()
            with suppress(trio.RunFinishedError):
                loop.run_sync_soon(self._ended, fetch, result)

        # Not trio.to_thread: there the first caller's cancellation would wait for the thread, or
        # throw its answer away while others wait for it.
        trio.lowlevel.start_thread_soon(_fetcher(self.url), deliver, name="hastetrio-jwks")
        return fetch

    async def _wait(self, fetch: _Fetch) -> None:
        with trio.move_on_after(_FETCH_LIMIT):
            await fetch.ended.wait()
        if self._fetch is fetch:
            self._note_failure(f"no answer within {_FETCH_LIMIT:.0f} s")

    def _ended(self, fetch: _Fetch, result: KeySet | str) -> None:
        if self._fetch is not fetch:
            # Given up long ago; a later one knows better.
            return
        self._fetch = None
        self._tried = trio.current_time()
        if isinstance(result, str):
            self._note_failure(result)
        else:
            if self._failed:
                _logger.info("Fetched the keys at %s again", self._shown)
            if not result.keys:
                _logger.warning("The key set at %s has no usable key", self._shown)
            self._keys = result
            self._fetched = fetch.started
            self._failed = False
        fetch.ended.set()

    def _note_failure(self, why: str) -> None:
        # Loud once an outage: as often as requests come would fill the log.
        log = _logger.debug if self._failed else _logger.warning
        log("Cannot fetch the keys at %s: %s", self._shown, why)
        self._failed = True


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        fits = bool(parts.hostname) and parts.username is None and not parts.fragment
        # Reading it checks the number.
        _ = parts.port
    except ValueError:
        fits = False
    if not fits or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(
            "the address of the key set must be a URL such as https://issuer.example/jwks.json, "
            "without a user name"
        )
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts)):
        raise ConfigError(
            f"the key set at {parts.scheme}://{parts.hostname} must be fetched by https: who "
            "changes it on the way can sign tokens (http is possible on 127.0.0.1)"
        )
    return url


def _is_loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https; others are errors."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: Any,  # noqa: ANN401  # as the base class has it
        code: int,
        msg: str,
        headers: Any,  # noqa: ANN401
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != "https":
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetcher(url: str) -> Callable[[], KeySet | str]:
    """A function that fetches the key set, or says why it cannot; it raises nothing."""

    def fetch() -> KeySet | str:
        try:
            return parse_key_set(_download(url))
        except urllib.error.HTTPError as error:
            error.close()
            return f"the answer was HTTP {error.code}"
        except urllib.error.URLError as error:
            return str(error.reason)
        except BadKeySet as error:
            return f"what is there cannot be used: {error}"
        except (OSError, HTTPException, ValueError) as error:
            return str(error) or type(error).__name__
        except Exception as error:  # noqa: BLE001  # callers wait for an answer, whatever it is
            return type(error).__name__

    return fetch


def _download(url: str) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [_HttpsOnly()]
    if _is_loopback(urlsplit(url)):
        # A proxy's loopback interface is not ours.
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(  # noqa: S310  # the scheme was checked
        url, headers={"Accept": "application/json", "User-Agent": "hastetrio"}
    )
    deadline = time.monotonic() + _FETCH_LIMIT
    text = b""
    with opener.open(request, timeout=_READ_LIMIT) as response:
        if response.status != 200:
            raise OSError(f"the answer was HTTP {response.status}")
        while len(text) <= SET_LIMIT and (part := response.read1(SET_LIMIT + 1 - len(text))):
            text += part
            if time.monotonic() > deadline:
                raise TimeoutError(f"the answer took more than {_FETCH_LIMIT:.0f} s")
    return text
