"""How a key set behind a URL is fetched, kept and renewed."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from trio.testing import MockClock, wait_all_tasks_blocked

from hastetrio._errors import ConfigError
from hastetrio.fhir import _jwks_url
from hastetrio.fhir._callers import AuthenticatorUnavailable
from hastetrio.fhir._jwks import SET_LIMIT
from hastetrio.fhir._jwks_url import JwksUrl

from . import tokens


@attrs.define
class Issuer:
    """A server of key sets on the loopback interface.

    Attributes:
        body: What it answers with.
        status: The status of that answer.
        location: The Location of that answer.
        asked: How often it was asked.
        gate: It answers while this is set.
        arrived: Set when it is asked.
    """

    url: str = ""
    body: bytes = tokens.key_set(tokens.jwk(kid="first"))
    status: int = 200
    location: str | None = None
    asked: int = 0
    gate: threading.Event = attrs.field(factory=threading.Event)
    arrived: threading.Event = attrs.field(factory=threading.Event)

    def publish(self, *kids: str) -> None:
        """Answer with these keys from now on."""
        self.body = tokens.key_set(*(tokens.jwk(kid=kid) for kid in kids))

    async def has_been_asked(self) -> None:
        """Wait until it is asked."""
        assert await trio.to_thread.run_sync(self.arrived.wait, 60, abandon_on_cancel=True)
        self.arrived.clear()


def _server(issuer: Issuer) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked += 1
            issuer.arrived.set()
            assert issuer.gate.wait(60)
            try:
                self.send_response(issuer.status)
                if issuer.location is not None:
                    self.send_header("Location", issuer.location)
                self.end_headers()
                self.wfile.write(issuer.body)
            except OSError:
                # Whoever asked has gone.
                pass

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    return server


@pytest.fixture
def issuers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Issuer]]:
    """Starts issuers, with a certificate or without."""
    # A busy machine must not look like an issuer that says nothing.
    monkeypatch.setattr(_jwks_url, "_READ_LIMIT", 60.0)
    running: list[tuple[Issuer, ThreadingHTTPServer, threading.Thread]] = []

    def start(context: ssl.SSLContext | None = None) -> Issuer:
        issuer = Issuer()
        issuer.gate.set()
        server = _server(issuer)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None  # type: ignore[method-assign]
        scheme = "http" if context is None else "https"
        issuer.url = f"{scheme}://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        running.append((issuer, server, thread))
        return issuer

    yield start
    for issuer, server, thread in running:
        issuer.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def issuer(issuers: Callable[..., Issuer]) -> Issuer:
    """An issuer."""
    return issuers()


async def kids(source: JwksUrl) -> list[str | None]:
    """The names of the current keys."""
    return [key.kid for key in (await source.current()).keys]


async def refreshed(source: JwksUrl, issuer: Issuer, clock: MockClock, seconds: float) -> None:
    """See a fetch that nobody waits for through, `seconds` from now."""
    clock.jump(seconds)
    issuer.arrived.clear()
    await source.current()
    fetch = source._fetch
    assert fetch is not None
    await fetch.ended.wait()


async def test_keys_are_fetched_when_needed_and_kept(issuer: Issuer, mock_clock: MockClock) -> None:
    """One fetch serves five minutes; then the keys published meanwhile are those used."""
    source = JwksUrl(issuer.url)
    assert issuer.asked == 0
    assert await kids(source) == ["first"]
    issuer.publish("second")
    mock_clock.jump(299)
    assert await kids(source) == ["first"]
    assert issuer.asked == 1
    mock_clock.jump(1)
    assert await kids(source) == ["second"]
    assert issuer.asked == 2


async def test_one_fetch_serves_all_callers(issuer: Issuer) -> None:
    """However many callers come while the keys are on their way, the issuer is asked once."""
    source = JwksUrl(issuer.url)
    found: list[list[str | None]] = []
    issuer.gate.clear()

    async def call() -> None:
        found.append(await kids(source))

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(call)
        await wait_all_tasks_blocked()
        await issuer.has_been_asked()
        issuer.gate.set()
    assert found == [["first"]] * 50
    assert issuer.asked == 1


async def test_cancelled_caller_disturbs_no_other(issuer: Issuer) -> None:
    """The caller whose request began the fetch goes away at once; the fetch serves the next."""
    source = JwksUrl(issuer.url)
    issuer.gate.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.current)
        await issuer.has_been_asked()
        nursery.cancel_scope.cancel()
    assert not issuer.gate.is_set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.current)
        await wait_all_tasks_blocked()
        issuer.gate.set()
    assert await kids(source) == ["first"]
    assert issuer.asked == 1


async def test_unknown_key_is_fetched_at_most_every_thirty_seconds(
    issuer: Issuer, mock_clock: MockClock
) -> None:
    """A key just published is found; tokens with made-up names do not have the issuer asked."""
    source = JwksUrl(issuer.url)
    keys = await source.current()
    issuer.publish("first", "new")
    mock_clock.jump(29)
    assert await source.renewed(keys) is keys
    assert issuer.asked == 1
    mock_clock.jump(1)
    newer = await source.renewed(keys)
    assert [key.kid for key in newer.keys] == ["first", "new"]
    # Somebody else's renewal is as good.
    mock_clock.jump(60)
    assert await source.renewed(keys) is newer
    assert issuer.asked == 2


async def test_keys_are_believed_for_an_hour_while_the_url_is_away(
    issuer: Issuer, mock_clock: MockClock
) -> None:
    """An outage of the issuer is not noticed for an hour, and ends by itself."""
    source = JwksUrl(issuer.url)
    await source.current()
    issuer.status = 503
    mock_clock.jump(300)
    assert await kids(source) == ["first"]
    assert issuer.asked == 2
    # Within the pause nothing is fetched.
    mock_clock.jump(4)
    assert await kids(source) == ["first"]
    assert issuer.asked == 2
    await refreshed(source, issuer, mock_clock, 3295)
    assert await kids(source) == ["first"]
    assert issuer.asked == 3
    mock_clock.jump(5)
    with pytest.raises(AuthenticatorUnavailable):
        await source.current()
    assert issuer.asked == 4
    issuer.status = 200
    issuer.publish("second")
    mock_clock.jump(5)
    assert await kids(source) == ["second"]


async def test_nobody_waits_for_a_url_known_to_be_away(
    issuer: Issuer, mock_clock: MockClock
) -> None:
    """After one failed fetch, requests are answered with the kept keys while it is tried again."""
    source = JwksUrl(issuer.url)
    await source.current()
    issuer.status = 500
    mock_clock.jump(300)
    await source.current()
    issuer.gate.clear()
    mock_clock.jump(5)
    assert await kids(source) == ["first"]
    await issuer.has_been_asked()
    assert not issuer.gate.is_set()


async def test_unknown_key_cannot_be_judged_while_the_url_is_away(
    issuer: Issuer, mock_clock: MockClock
) -> None:
    """A token signed with a key that may be new is not called wrong: it is to be sent again."""
    source = JwksUrl(issuer.url)
    keys = await source.current()
    issuer.status = 500
    mock_clock.jump(30)
    for _ in range(2):
        with pytest.raises(AuthenticatorUnavailable):
            await source.renewed(keys)
    assert issuer.asked == 2
    issuer.status = 200
    mock_clock.jump(5)
    assert await source.renewed(keys) is not keys


async def test_url_that_was_never_there_is_tried_every_five_seconds(
    issuer: Issuer, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Without keys nobody is believed, the issuer is not flooded, and the log has one line."""
    source = JwksUrl(issuer.url + "?secret=7")
    issuer.status = 404
    for _ in range(3):
        for _ in range(3):
            with pytest.raises(AuthenticatorUnavailable) as caught:
                await source.current()
            assert "127.0.0.1" not in str(caught.value)
        mock_clock.jump(5)
    assert issuer.asked == 3
    (warning,) = (one for one in caplog.records if one.levelno >= logging.WARNING)
    assert "HTTP 404" in warning.getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "no JSON Web Key Set"),
        (b" " * (SET_LIMIT + 1), "more than 262,144 bytes"),
        (b" " * 20_000_000, "more than 262,144 bytes"),
    ],
)
async def test_answer_that_is_no_key_set_is_refused(
    issuer: Issuer, body: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An error page or an endless answer is taken for an outage."""
    issuer.body = body
    with pytest.raises(AuthenticatorUnavailable):
        await JwksUrl(issuer.url).current()
    assert why in caplog.text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_to_http_is_not_followed(
    issuers: Callable[..., Issuer], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Who can change an answer of http could name their own keys."""
    first, second = issuers(), issuers()
    first.status, first.location = status, second.url
    with pytest.raises(AuthenticatorUnavailable):
        await JwksUrl(first.url).current()
    assert second.asked == 0
    assert f"HTTP {status}" in caplog.text


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/", "data:,{}"])
async def test_redirect_to_anything_else_is_not_followed(issuer: Issuer, location: str) -> None:
    """Nor is a file of this machine read because an answer says so."""
    issuer.status, issuer.location = 302, location
    with pytest.raises(AuthenticatorUnavailable):
        await JwksUrl(issuer.url).current()


async def test_unreachable_issuer_is_unavailable(issuer: Issuer) -> None:
    """Nobody listens there."""
    source = JwksUrl("http://127.0.0.1:1/jwks.json")
    with pytest.raises(AuthenticatorUnavailable):
        await source.current()


async def test_silent_issuer_is_given_up(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An issuer that accepts and says nothing holds the thread no longer than the read limit."""
    monkeypatch.setattr(_jwks_url, "_READ_LIMIT", 0.01)
    issuer.gate.clear()
    with pytest.raises(AuthenticatorUnavailable):
        await JwksUrl(issuer.url).current()
    assert "timed out" in caplog.text


async def test_callers_of_a_fetch_that_hangs_are_let_go(
    issuer: Issuer, mock_clock: MockClock
) -> None:
    """A thread that no limit reaches keeps no request; after a minute another is tried."""
    source = JwksUrl(issuer.url)
    issuer.gate.clear()

    async def call() -> None:
        with pytest.raises(AuthenticatorUnavailable):
            await source.current()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await issuer.has_been_asked()
        await wait_all_tasks_blocked()
        mock_clock.jump(11)
    assert source._fetch is not None, "it was to hang"
    assert issuer.asked == 1
    mock_clock.jump(50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.current)
        await issuer.has_been_asked()
        issuer.gate.set()
    assert issuer.asked == 2
    assert await kids(source) == ["first"]


def test_event_loop_that_ended_is_not_missed(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that outlives its program's event loop ends quietly."""
    delivered = threading.Event()
    errors: list[BaseException] = []
    start = trio.lowlevel.start_thread_soon

    def watched(fn: Any, deliver: Any, name: str | None = None) -> None:  # noqa: ANN401
        def watch(outcome: Any) -> None:  # noqa: ANN401
            try:
                deliver(outcome)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)
            finally:
                delivered.set()

        start(fn, watch, name)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", watched)
    issuer.gate.clear()

    async def program() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(JwksUrl(issuer.url).current)
            await issuer.has_been_asked()
            nursery.cancel_scope.cancel()

    trio.run(program)
    issuer.gate.set()
    assert delivered.wait(60)
    assert errors == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "issuer.example",
        "/etc/keys.json",
        "file:///etc/keys.json",
        "ftp://issuer.example/",
        "http://issuer.example/jwks.json",
        "http://10.0.0.1/jwks.json",
        "http://localhost.issuer.example/",
        "http://127.0.0.1.issuer.example/",
        "https://",
        "https://user:secret@issuer.example/",
        "https://user@issuer.example/",
        "https://issuer.example/#a",
        "https://issuer.example:port/",
        "https://issuer.example:99999/",
        "https://[::1/",
        "https://issuer.example/a b",
        "https://issuer.example/a\nb",
        "https://issuer.exämple/",
    ],
)
def test_bad_address_is_refused_at_once(url: str) -> None:
    """One line, and no password in it."""
    with pytest.raises(ConfigError) as caught:
        JwksUrl(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example/jwks.json",
        "HTTPS://issuer.example:8443/a?b=c",
        "http://127.0.0.1:8080/",
        "http://127.1.2.3/",
        "http://[::1]:8080/",
        "http://localhost/",
    ],
)
def test_https_and_loopback_are_accepted(url: str) -> None:
    """Nothing is fetched yet."""
    assert JwksUrl(url).url == url


def _certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A context for a server on 127.0.0.1, and the certificate to trust it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, whole = folder / "public.pem", folder / "whole.pem"
    public.write_bytes(certificate.public_bytes(Encoding.PEM))
    whole.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + public.read_bytes()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(whole)
    return context, public


async def test_https_needs_a_certificate_that_is_trusted(
    issuers: Callable[..., Issuer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keys come by https from whom the machine trusts, redirects to https included, else not."""
    context, certificate = _certificate(tmp_path)
    issuer, plain = issuers(context), issuers()
    with pytest.raises(AuthenticatorUnavailable):
        await JwksUrl(issuer.url).current()
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
    assert issuer.asked == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert await kids(JwksUrl(issuer.url)) == ["first"]
    plain.status, plain.location = 302, issuer.url
    plain.publish("plain")
    assert await kids(JwksUrl(plain.url)) == ["first"]


async def test_proxy_is_not_asked_for_this_machine(
    issuers: Callable[..., Issuer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy of the environment has a loopback interface of its own."""
    issuer, proxy = issuers(), issuers()
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert await kids(JwksUrl(issuer.url)) == ["first"]
    assert proxy.asked == 0
