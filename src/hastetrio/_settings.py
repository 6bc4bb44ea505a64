"""Settings from the command line, the environment and `hastetrio.toml`, in that order.

Each key has one name in three spellings: `poll_interval` in the file, `HASTETRIO_POLL_INTERVAL`
in the environment, `--poll-interval` on the command line. An error is one line that names the key
and says which of the three it came from.
"""

from __future__ import annotations

import difflib
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs
from cattrs import Converter

from hastetrio._config import AsyncJobWorkerConfig, whole
from hastetrio._convert import TEXT, TOML
from hastetrio._errors import ConfigError
from hastetrio._http_config import HttpConfig, parse_address
from hastetrio._model import check_duration
from hastetrio._settings_help import WORDS

PREFIX: Final = "HASTETRIO_"
DEFAULT_FILE: Final = "hastetrio.toml"
CONFIG_VARIABLE: Final = PREFIX + "CONFIG"

# No setting of a program's, but of the tests' fixtures: a server that is there already.
TEST_SERVER_VARIABLE: Final = PREFIX + "TEST_SERVER"

LogFormat: TypeAlias = Literal["text", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

_MIB: Final = 1024 * 1024
_NO_DATABASE: Final = (
    f"no database: give --database-url URL or {PREFIX}DATABASE_URL, "
    "or --embedded for a private one on this machine"
)

# Only signatures whose public half is published: with a shared secret, whoever can check a token
# could make one (RFC 8725 section 2.1).
_ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")


def _size(_: object, field: attrs.Attribute[int], value: int) -> None:
    if not 1 <= value <= 2**28:
        raise ConfigError(f"{field.name} must be from 1 to {2**28:,} bytes, not {value!r}")


def _pace(_: object, field: attrs.Attribute[float], value: float) -> None:
    try:
        check_duration(value, field.name, zero=True)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _named(_: object, field: attrs.Attribute[str], value: str) -> None:
    if not value:
        raise ConfigError(f"{field.name} must not be empty")


def _address(_: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    try:
        if value is not None:
            parse_address(value)
    except ValueError as error:
        raise ConfigError(f"{field.name} {error}") from None


def _asymmetric(_: object, field: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    if not value or not set(value) <= set(_ALGORITHMS):
        raise ConfigError(
            f"{field.name} must be among {', '.join(_ALGORITHMS)}, not {', '.join(value)!r}"
        )


@attrs.frozen(kw_only=True)
class Settings:
    """Everything that can be set, checked. Sizes are bytes.

    Args:
        database_url: Where the jobs are. Left out of the printed form: it may hold a password.
        embedded: Whether to use the private PostgreSQL of this machine instead.
        data_dir: Where that one keeps its data, or None for the usual place.
        prepared_statements: Whether the server prepares statements; off for some poolers.
        log_format: How log lines look.
        log_level: The least level that is logged, or None for the command's own default.
        tenant: The tenant whose jobs a command is about.
        project: The project of that tenant.
        parameters_limit: The most bytes of JSON the parameters of a new job may have.
        claims_limit: The most bytes of JSON the claims of a new job may have.
        handlers: Handlers to run, each `MODULE:ATTR`.
        kinds: The kinds to run, or none for every kind there is a handler for.
        middleware: What goes around each run of a handler, each `MODULE:ATTR`.
        transaction_connections: The most transactions that handlers have open at once.
        export_source: The directory bulk-export reads.
        export_output: The directory bulk-export writes to.
        export_base_url: The URL under which that directory is served.
        export_pace: Seconds bulk-export sleeps after every 16 KiB; for demonstrations.
        http: Where to listen for HTTP, as `HOST:PORT`; port 0 for any that is free.
        jwks_file: The file with the public keys that access tokens are signed with.
        jwks_url: The address of these keys.
        token_issuer: Whose tokens are accepted (`iss`).
        token_audience: For whom a token must be made (`aud`).
        token_algorithms: How a token may be signed.
        worker: How the worker behaves.
        face: How the HTTP face behaves.
    """

    database_url: str | None = attrs.field(default=None, repr=False)
    embedded: bool = False
    data_dir: Path | None = None
    prepared_statements: bool = True
    log_format: LogFormat = "text"
    log_level: LogLevel | None = None
    tenant: str = attrs.field(default="system", validator=_named)
    project: str = attrs.field(default="system", validator=_named)
    parameters_limit: int = attrs.field(default=_MIB, validator=_size)
    claims_limit: int = attrs.field(default=_MIB, validator=_size)
    handlers: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    transaction_connections: int = attrs.field(default=4, validator=whole(1, 1000))
    export_source: Path | None = None
    export_output: Path | None = None
    export_base_url: str | None = None
    export_pace: float = attrs.field(default=0.0, validator=_pace)
    http: str | None = attrs.field(default=None, validator=_address)
    jwks_file: Path | None = None
    jwks_url: str | None = None
    token_issuer: str | None = None
    token_audience: str | None = None
    token_algorithms: tuple[str, ...] = attrs.field(default=_ALGORITHMS, validator=_asymmetric)
    worker: AsyncJobWorkerConfig = attrs.field(factory=AsyncJobWorkerConfig)
    face: HttpConfig = attrs.field(factory=HttpConfig)

    def check_database(self) -> None:
        """See that a database was named.

        Raises:
            ConfigError: Neither a database URL nor the embedded server was; the text says how.
        """
        if self.database_url is None and not self.embedded:
            raise ConfigError(_NO_DATABASE)

    def check_tokens(self) -> bool:
        """See that what was said about access tokens is all there, or nothing was said.

        Returns:
            Whether clients have to show one.

        Raises:
            ConfigError: Keys come from two places, or something is missing.
        """
        if self.jwks_file is not None and self.jwks_url is not None:
            raise ConfigError("jwks_file and jwks_url exclude each other: give one")
        keys = "jwks_file" if self.jwks_file is not None else "jwks_url"
        given = {
            "jwks_file or jwks_url": self.jwks_file or self.jwks_url,
            "token_issuer": self.token_issuer,
            "token_audience": self.token_audience,
        }
        present = [keys if "jwks" in name else name for name, value in given.items() if value]
        missing = [name for name, value in given.items() if not value]
        if present and missing:
            raise ConfigError(
                f"{' and '.join(present)} cannot be used without {' and '.join(missing)}: "
                "give all of them to demand access tokens, or none"
            )
        return bool(present)


@attrs.frozen
class Key:
    """One setting: its names, its type, and what a person is told about it."""

    name: str
    type: Any
    default: object
    metavar: str
    help: str
    owner: type[Settings | AsyncJobWorkerConfig | HttpConfig]

    @property
    def flag(self) -> str:
        """The setting on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The setting in the environment."""
        return PREFIX + self.name.upper()


def _keys() -> Iterable[Key]:
    for owner in (Settings, AsyncJobWorkerConfig, HttpConfig):
        types = typing.get_type_hints(owner)
        for field in attrs.fields(owner):
            if field.name not in ("worker", "face"):
                metavar, words = WORDS.get(field.name, ("VALUE", ""))
                yield Key(field.name, types[field.name], field.default, metavar, words, owner)


KEYS: Final[Mapping[str, Key]] = {key.name: key for key in _keys()}
"""Every setting by its name in the file."""

WORKER_KEYS: Final[tuple[str, ...]] = tuple(
    field.name for field in attrs.fields(AsyncJobWorkerConfig)
)

FACE_KEYS: Final[tuple[str, ...]] = tuple(field.name for field in attrs.fields(HttpConfig))

TOKEN_KEYS: Final = (
    *("jwks_file", "jwks_url", "token_issuer", "token_audience", "token_algorithms"),
)


@attrs.frozen
class Loaded:
    """Settings, and what a person should know about where they came from."""

    settings: Settings
    warnings: tuple[str, ...] = ()


@attrs.frozen
class _Found:
    value: Any
    origin: str
    rank: int


def load(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    config: Path | None = None,
) -> Loaded:
    """Put the settings together: a flag wins over the environment, that over the file.

    Args:
        flags: What the command line gave, by key: text, a bool, or several texts.
        environ: The environment. A variable that is empty counts as not set.
        config: The file; without one, `HASTETRIO_CONFIG`, else `hastetrio.toml` in the current
            folder where there is one.

    Returns:
        The settings, and a warning for variables that look like settings and are none.

    Raises:
        ConfigError: A value cannot be used, the file cannot be read, or it has an unknown key.
    """
    sources = (_read_flags(flags), _read_environment(environ), _read_file(config, environ))
    found: dict[str, _Found] = {}
    for rank, source in enumerate(sources):
        for name, (value, origin) in source.items():
            found.setdefault(name, _Found(value, origin, rank))
    _choose_database(found)
    for name, one in found.items():
        _check_alone(KEYS[name], one)
    values = {name: one.value for name, one in found.items()}
    worker = {name: values.pop(name) for name in WORKER_KEYS if name in values}
    face = {name: values.pop(name) for name in FACE_KEYS if name in values}
    settings = Settings(**values, worker=AsyncJobWorkerConfig(**worker), face=HttpConfig(**face))
    return Loaded(settings, _unknown_variables(environ))


_Source: TypeAlias = dict[str, tuple[Any, str]]


def _read_flags(flags: Mapping[str, object]) -> _Source:
    return {
        name: (_convert(TEXT, KEYS[name], value, KEYS[name].flag), KEYS[name].flag)
        for name, value in flags.items()
    }


def _read_environment(environ: Mapping[str, str]) -> _Source:
    return {
        name: (_convert(TEXT, key, environ[key.variable], key.variable), key.variable)
        for name, key in KEYS.items()
        if environ.get(key.variable)
    }


def _read_file(config: Path | None, environ: Mapping[str, str]) -> _Source:
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    path = Path(DEFAULT_FILE) if config is None else config
    if config is None and not path.exists():
        return {}
    origin = str(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {origin}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the settings file {origin} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the settings file {origin} is not TOML: {error}") from None
    source: _Source = {}
    for name, raw in table.items():
        if name not in KEYS:
            raise ConfigError(f"unknown key {_suggest(name, KEYS)} (from {origin})")
        value = _convert(TOML, KEYS[name], raw, origin)
        if isinstance(value, Path):
            # A file moves with the folders it names, whatever folder the program starts in.
            value = path.parent / value
        source[name] = (value, origin)
    return source


def _choose_database(found: dict[str, _Found]) -> None:
    """Leave one of the two kinds of database: the one named by the stronger source."""
    url = found.get("database_url")
    embedded = found.get("embedded")
    data_dir = found.get("data_dir")
    if data_dir is not None and (embedded is None or data_dir.rank < embedded.rank):
        embedded = _Found(True, data_dir.origin, data_dir.rank)
    if embedded is None or not embedded.value:
        found.pop("embedded", None)
        found.pop("data_dir", None)
    elif url is None or embedded.rank < url.rank:
        found["embedded"] = embedded
        found.pop("database_url", None)
    elif url.rank < embedded.rank:
        found.pop("embedded", None)
        found.pop("data_dir", None)
    else:
        raise ConfigError(
            f"database_url and embedded exclude each other: give one "
            f"(from {' and '.join(dict.fromkeys((url.origin, embedded.origin)))})"
        )


def _unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    known = {key.variable for key in KEYS.values()} | {
        CONFIG_VARIABLE,
        TEST_SERVER_VARIABLE,
    }
    unknown = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if not unknown:
        return ()
    # One line for all: Kubernetes gives every pod seven or more for a service named hastetrio.
    names = ", ".join(_suggest(name, known) for name in unknown)
    return (f"ignored environment variables that are no settings: {names}",)


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.85)
    return f"{name} (did you mean {close[0]}?)" if close else name


def _check_alone(key: Key, found: _Found) -> None:
    """Let the class that holds the setting judge it, so that an error can say where it is from."""
    try:
        key.owner(**{key.name: found.value})
    except ConfigError as error:
        raise ConfigError(f"{error} (from {found.origin})") from None


def _convert(converter: Converter, key: Key, raw: object, origin: str) -> Any:  # noqa: ANN401  # whatever type the setting has
    try:
        return converter.structure(raw, key.type)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{key.name} {error} (from {origin})") from None
