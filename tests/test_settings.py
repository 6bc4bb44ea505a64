"""Settings: where a value comes from, what is refused, and what the refusal says."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from hastetrio._config import AsyncJobWorkerConfig
from hastetrio._errors import ConfigError
from hastetrio._http_config import HttpConfig
from hastetrio._settings import KEYS, Settings, load

TEXTS = {
    "database_url": "postgresql://db/jobs",
    "embedded": "yes",
    "data_dir": "/srv/pg",
    "prepared_statements": "off",
    "log_format": "json",
    "log_level": "DEBUG",
    "tenant": "t",
    "project": "p",
    "parameters_limit": "11",
    "claims_limit": "12",
    "handlers": "a:b, c:d",
    "kinds": "k,l",
    "middleware": "m:n",
    "transaction_connections": "9",
    "export_source": "/srv/in",
    "export_output": "/srv/out",
    "export_base_url": "https://example.org",
    "export_pace": "0.5",
    "http": "[::1]:8080",
    "jwks_file": "/srv/keys.json",
    "jwks_url": "https://example.org/keys",
    "token_issuer": "https://example.org",
    "token_audience": "https://example.org/fhir",
    "token_algorithms": "ES256, RS256",
    "public_url": "https://fhir.example.org/base",
    "require_prefer": "off",
    "poll_connections": "7",
}
TOML = {
    "database_url": '"postgresql://db/jobs"',
    "embedded": "true",
    "data_dir": '"/srv/pg"',
    "prepared_statements": "false",
    "log_format": '"json"',
    "log_level": '"debug"',
    "tenant": '"t"',
    "project": '"p"',
    "handlers": '["a:b", "c:d"]',
    "kinds": '["k", "l"]',
    "middleware": '["m:n"]',
    "transaction_connections": "9",
    "export_source": '"/srv/in"',
    "export_output": '"/srv/out"',
    "export_base_url": '"https://example.org"',
    "export_pace": "0.5",
    "http": '"[::1]:8080"',
    "jwks_file": '"/srv/keys.json"',
    "jwks_url": '"https://example.org/keys"',
    "token_issuer": '"https://example.org"',
    "token_audience": '"https://example.org/fhir"',
    "token_algorithms": '["ES256", "RS256"]',
    "public_url": '"https://fhir.example.org/base"',
    "require_prefer": "false",
}
VALUES = {
    "database_url": "postgresql://db/jobs",
    "embedded": True,
    "data_dir": Path("/srv/pg"),
    "prepared_statements": False,
    "log_format": "json",
    "log_level": "debug",
    "tenant": "t",
    "project": "p",
    "parameters_limit": 11,
    "claims_limit": 12,
    "handlers": ("a:b", "c:d"),
    "kinds": ("k", "l"),
    "middleware": ("m:n",),
    "transaction_connections": 9,
    "export_source": Path("/srv/in"),
    "export_output": Path("/srv/out"),
    "export_base_url": "https://example.org",
    "export_pace": 0.5,
    "http": "[::1]:8080",
    "jwks_file": Path("/srv/keys.json"),
    "jwks_url": "https://example.org/keys",
    "token_issuer": "https://example.org",
    "token_audience": "https://example.org/fhir",
    "token_algorithms": ("ES256", "RS256"),
    "public_url": "https://fhir.example.org/base",
    "require_prefer": False,
    "poll_connections": 7,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that no settings file of the developer's is read."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value_of(settings: Settings, name: str) -> object:
    """A setting, wherever it is kept."""
    owners = {Settings: settings, AsyncJobWorkerConfig: settings.worker, HttpConfig: settings.face}
    return getattr(owners[KEYS[name].owner], name)


def refusal(environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> str:
    """What `load` says when it refuses; always one line."""
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, environ or {})
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_read_from_all_three_sources(name: str, folder: Path) -> None:
    """A setting that one of the three spellings forgets would be silently ignored there."""
    text = TEXTS.get(name, "2048")
    expected = VALUES.get(name, 2048)
    assert value_of(load({name: text}, {}).settings, name) == expected
    assert value_of(load({}, {KEYS[name].variable: text}).settings, name) == expected
    (folder / "hastetrio.toml").write_text(f"{name} = {TOML.get(name, text)}\n")
    assert value_of(load({}, {}).settings, name) == expected


def test_every_field_of_the_worker_and_the_face_is_a_setting_with_help() -> None:
    """A field added to their configuration must not be left out of the command line."""
    for field in (*attrs.fields(AsyncJobWorkerConfig), *attrs.fields(HttpConfig)):
        assert field.name in KEYS
    assert [key.name for key in KEYS.values() if not key.help] == []


def test_a_flag_wins_over_the_environment_and_that_over_the_file(folder: Path) -> None:
    """The nearer to the person, the stronger."""
    (folder / "hastetrio.toml").write_text(
        "poll_interval = 1.5\nlease_duration = 31\ndrain_timeout = 7"
    )
    environ = {"HASTETRIO_POLL_INTERVAL": "2.5", "HASTETRIO_LEASE_DURATION": "32"}
    worker = load({"poll_interval": "3.5"}, environ).settings.worker
    assert (worker.poll_interval, worker.lease_duration, worker.drain_timeout) == (3.5, 32, 7)


def test_nothing_given_is_the_defaults() -> None:
    """The defaults stand in one place."""
    assert load({}, {}).settings == Settings()


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("poll_interval", "soon", "a number"),
        ("poll_interval", "nan", "finite"),
        ("poll_interval", "-1", "more than 0"),
        ("lease_duration", "0.1", "at least 0.7"),
        ("max_concurrent_jobs", "0", "from 1"),
        ("max_concurrent_jobs", "2.5", "a whole number"),
        ("parameters_limit", "0", "from 1"),
        ("embedded", "perhaps", "true or false"),
        ("log_format", "xml", "one of text, json"),
        ("log_level", "loud", "one of debug"),
        ("http", "8000", "HOST:PORT"),
        ("http", "::1:8000", "HOST:PORT"),
        ("public_url", "fhir.example.org", "http or https URL"),
        ("public_url", "https://fhir.example.org/?x=1", "http or https URL"),
        ("live_limit", "0", "from 1"),
        ("body_limit", "10", "from 1,024"),
        ("poll_connections", "0", "from 1"),
        ("token_algorithms", "HS256", "RS256, ES256, EdDSA"),
        ("token_algorithms", "none", "RS256, ES256, EdDSA"),
        ("token_algorithms", ",", "RS256, ES256, EdDSA"),
        ("data_dir", "~nobody-of-that-name/x", "home folder"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_origin(name: str, text: str, word: str) -> None:
    """Whoever reads the line knows which setting to change, and where it is."""
    key = KEYS[name]
    by_variable = refusal({key.variable: text})
    assert by_variable.startswith(name)
    assert word in by_variable
    assert by_variable.endswith(f"(from {key.variable})")
    assert refusal(flags={name: text}).endswith(f"(from {key.flag})")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('poll_interval = "1"', "a number"),
        ("poll_interval = true", "a number"),
        ("poll_interval = nan", "finite"),
        ('max_concurrent_jobs = "4"', "a whole number"),
        ("max_concurrent_jobs = true", "a whole number"),
        ("parameters_limit = true", "a whole number"),
        ("max_concurrent_jobs = 0", "from 1"),
        ("embedded = 1", "true or false"),
        ("database_url = 5", "must be text"),
        ('kinds = "a,b"', "a list of texts"),
        ("kinds = [1]", "a list of texts"),
        ("data_dir = 1", "a path"),
        ('data_dir = ""', "a path"),
        ('tenant = ""', "empty"),
    ],
)
def test_a_bad_value_of_the_file_is_refused(line: str, word: str, folder: Path) -> None:
    """A file has types: a number in quotes is a mistake, not a number."""
    (folder / "hastetrio.toml").write_text(line)
    text = refusal()
    assert text.startswith(line.split(" ", maxsplit=1)[0])
    assert word in text
    assert text.endswith("(from hastetrio.toml)")


def test_an_unknown_key_of_the_file_is_refused(folder: Path) -> None:
    """A typo in a file would otherwise be a default in production."""
    (folder / "hastetrio.toml").write_text("pol_interval = 1")
    text = refusal()
    assert "pol_interval" in text
    assert "did you mean poll_interval?" in text
    assert "hastetrio.toml" in text


def test_unknown_variables_are_one_warning_without_their_values() -> None:
    """Kubernetes injects variables for a service of that name; they must not stop a pod."""
    environ = {
        "HASTETRIO_PORT": "tcp://10.0.0.1:80",
        "HASTETRIO_SERVICE_HOST": "10.0.0.1",
        "HASTETRIO_POL_INTERVAL": "1",
        "HASTETRIO_CONFIG": "",
        "OTHER": "1",
    }
    (warning,) = load({}, environ).warnings
    assert "HASTETRIO_PORT, HASTETRIO_SERVICE_HOST" in warning
    assert "did you mean HASTETRIO_POLL_INTERVAL?" in warning
    assert "10.0.0.1" not in warning
    assert "OTHER" not in warning
    assert "HASTETRIO_CONFIG" not in warning


def test_known_variables_bring_no_warning() -> None:
    """A warning that is always there is read by nobody."""
    environ = {KEYS[name].variable: text for name, text in TEXTS.items() if name != "database_url"}
    assert load({}, environ).warnings == ()


def test_an_empty_variable_is_not_set() -> None:
    """Compose files and charts pass empty variables for what nobody chose."""
    assert load({}, {"HASTETRIO_POLL_INTERVAL": "", "HASTETRIO_KINDS": ""}).settings == Settings()


def test_the_file_is_found_by_variable_and_by_argument(folder: Path) -> None:
    """The file may be anywhere; an argument is stronger than the variable."""
    (folder / "a.toml").write_text("poll_interval = 2")
    (folder / "b.toml").write_text("poll_interval = 3")
    environ = {"HASTETRIO_CONFIG": "a.toml"}
    assert load({}, environ).settings.worker.poll_interval == 2
    assert load({}, environ, config=Path("b.toml")).settings.worker.poll_interval == 3


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "No such file"),
        (b"\xff", "not UTF-8"),
        (b"a = ", "not TOML"),
        ("folder", "directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    content: bytes | str | None, word: str, folder: Path
) -> None:
    """One line names the file and what is wrong with it."""
    path = folder / "x.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    text = refusal({"HASTETRIO_CONFIG": str(path)})
    assert str(path) in text
    assert word in text


def test_paths_of_the_file_are_relative_to_it(folder: Path) -> None:
    """A file moves with the folders it names."""
    (folder / "etc").mkdir()
    (folder / "etc" / "x.toml").write_text('data_dir = "pg"\nexport_source = "/abs"')
    settings = load({}, {}, config=Path("etc/x.toml")).settings
    assert settings.data_dir == Path("etc/pg")
    assert settings.export_source == Path("/abs")


@pytest.mark.parametrize(
    ("flags", "environ", "file", "expected"),
    [
        ({"embedded": True}, {"DATABASE_URL": "x"}, "", (None, True, None)),
        ({"database_url": "x"}, {"EMBEDDED": "1", "DATA_DIR": "/d"}, "", ("x", False, None)),
        ({}, {"DATABASE_URL": "x"}, "embedded = true", ("x", False, None)),
        ({"data_dir": "/d"}, {"DATABASE_URL": "x"}, "", (None, True, Path("/d"))),
        ({"embedded": True}, {}, 'data_dir = "/d"', (None, True, Path("/d"))),
        ({}, {"EMBEDDED": "no", "DATABASE_URL": "x"}, "embedded = true", ("x", False, None)),
        ({"data_dir": "/d"}, {"EMBEDDED": "no"}, "", (None, True, Path("/d"))),
        ({}, {}, "", (None, False, None)),
    ],
)
def test_the_stronger_source_names_the_database(
    flags: dict[str, object],
    environ: dict[str, str],
    file: str,
    expected: tuple[object, ...],
    folder: Path,
) -> None:
    """A flag for one kind of database overrides a variable for the other, data folder included."""
    (folder / "hastetrio.toml").write_text(file)
    environ = {f"HASTETRIO_{name}": value for name, value in environ.items()}
    settings = load(flags, environ).settings
    assert (settings.database_url, settings.embedded, settings.data_dir) == expected


@pytest.mark.parametrize("name", ["embedded", "data_dir"])
def test_two_databases_from_one_source_are_refused(name: str) -> None:
    """Guessing which one was meant would put somebody's jobs where nobody looks for them."""
    secret = "postgresql://u:hunter2@db/jobs"  # noqa: S105
    text = refusal({"HASTETRIO_DATABASE_URL": secret, KEYS[name].variable: "1"})
    assert "exclude each other" in text
    assert "HASTETRIO_DATABASE_URL" in text
    assert KEYS[name].variable in text
    assert "hunter2" not in text


def test_no_database_says_how_to_give_one() -> None:
    """Nobody's fleet works silently on a private empty database."""
    with pytest.raises(ConfigError, match=r"--database-url.*HASTETRIO_DATABASE_URL.*--embedded"):
        Settings().check_database()
    Settings(database_url="x").check_database()
    Settings(embedded=True).check_database()


def test_the_printed_form_holds_no_database_url() -> None:
    """A traceback or a log line that shows the settings must not show the password."""
    assert "hunter2" not in repr(Settings(database_url="postgresql://u:hunter2@db/jobs"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"jwks_file": "k", "jwks_url": "u"}, ("jwks_file", "jwks_url", "exclude")),
        ({"jwks_file": "k"}, ("jwks_file", "token_issuer and token_audience")),
        ({"jwks_url": "u", "token_issuer": "i"}, ("jwks_url and token_issuer", "token_audience")),
        ({"token_issuer": "i", "token_audience": "a"}, ("token_issuer", "jwks_file or jwks_url")),
    ],
)
def test_half_of_an_authenticator_is_refused(
    given: dict[str, object], words: tuple[str, ...]
) -> None:
    """A server that was to demand tokens must not start without."""
    settings = load(given, {}).settings
    with pytest.raises(ConfigError) as caught:
        settings.check_tokens()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_tokens_are_demanded_once_everything_is_given() -> None:
    """And not before."""
    given = {"token_issuer": "i", "token_audience": "a"}
    assert load({"jwks_file": "k"} | given, {}).settings.check_tokens()
    assert load({"jwks_url": "u"} | given, {}).settings.check_tokens()
    assert not Settings().check_tokens()


def test_kubernetes_cannot_set_anything() -> None:
    """It gives a pod variables for each service: none of these names may be a setting's."""
    for key in KEYS.values():
        last = key.name.rsplit("_", maxsplit=1)[-1]
        assert last not in ("port", "proto", "addr", "host")
        assert not key.name.startswith("service_")
