"""How the HTTP face behaves."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import attrs

from hastetrio._config import whole
from hastetrio._errors import ConfigError

_KIB: Final = 1024

DEFAULT_ADDRESS: Final = "127.0.0.1:8000"
"""Where the HTTP face listens when nothing else was said."""


def parse_address(text: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`; an IPv6 address is written in brackets.

    Raises:
        ValueError: It is not of that form.
    """
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # Only what is in brackets may have colons: 2001:db8::1 could be a host with the port 1.
    fits = bool(bare) and not set(bare) & set("[]/@ ") and (bare != host or ":" not in host)
    if not fits or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"must be HOST:PORT such as 127.0.0.1:8000 or [::1]:8000, not {text!r}")
    return bare, int(port)


def show_address(host: str, port: int) -> str:
    """`HOST:PORT`, as `parse_address` takes it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _public_url(_: object, field: attrs.Attribute[str], value: object) -> None:
    if value == "":
        return
    try:
        parts = urlsplit(value) if isinstance(value, str) else None
        fits = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        fits = fits and parts is not None and not (parts.query or parts.fragment or parts.username)
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{field.name} must be an http or https URL such as https://fhir.example.org, "
            f"not {value!r}"
        )


@attrs.frozen(kw_only=True)
class HttpConfig:
    """How the HTTP face behaves. Sizes are bytes.

    Args:
        public_url: What clients' addresses of this server begin with: scheme, host, and the path
            of a proxy where there is one. Empty: the address it listens on.
        live_limit: The most jobs of a project that are queued or running at once; a kick-off
            beyond it is answered 429.
        require_prefer: Whether a kick-off without `Prefer: respond-async` is refused.
        body_limit: The most bytes of a request's body.
        url_limit: The most bytes of a request's path and query.
        connection_limit: The most connections open at once; further ones wait to be accepted.
        poll_connections: The most database connections that requests share.

    Raises:
        ConfigError: A value cannot be used; the text names it.
    """

    public_url: str = attrs.field(default="", validator=_public_url)
    live_limit: int = attrs.field(default=100, validator=whole(1, 1_000_000))
    require_prefer: bool = True
    body_limit: int = attrs.field(default=1024 * _KIB, validator=whole(_KIB, 2**28))
    url_limit: int = attrs.field(default=8 * _KIB, validator=whole(256, 64 * _KIB))
    connection_limit: int = attrs.field(default=1000, validator=whole(1, 100_000))
    poll_connections: int = attrs.field(default=4, validator=whole(1, 1000))
