"""Finding the handlers a worker runs: named on the command line, installed, bulk-export."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from hastetrio._errors import ConfigError
from hastetrio._handler import JobHandler
from hastetrio._middleware import JobMiddleware, check_middleware
from hastetrio._registration import handlers_by_kind
from hastetrio._settings import Settings

ENTRY_POINTS: Final = "hastetrio.handlers"

_NONE: Final = (
    "no handlers: give --handlers MODULE:ATTR, install a package that has entry points "
    f"of the group {ENTRY_POINTS}, or give --export-source and --export-output"
)

_logger = logging.getLogger("hastetrio.cli")


def collect_handlers(
    settings: Settings,
    *,
    public_url: str = "",
    requires_access_token: bool = True,
    required: bool = True,
) -> list[JobHandler]:
    """The handlers that the settings ask for, one a kind.

    Args:
        settings: What they ask for.
        public_url: Where results are served, unless the settings say so themselves.
        requires_access_token: Whether clients need a token to get them there.
        required: Whether there must be a handler.

    Raises:
        ConfigError: There is none though one is required, one cannot be imported or is no handler,
            two are of one kind, or `kinds` asks for one that is not there.
    """
    by_kind: dict[str, tuple[JobHandler, str]] = {}
    export = _bulk_export(settings, public_url, requires_access_token=requires_access_token)
    for origin, handlers in _sources(settings, export):
        for kind, handler in _checked(handlers, origin).items():
            if kind in by_kind:
                raise ConfigError(
                    f"two handlers are registered for the kind {kind!r}: "
                    f"by {by_kind[kind][1]} and by {origin}"
                )
            by_kind[kind] = (handler, origin)
    if not by_kind and required:
        raise ConfigError(_NONE)
    for kind in settings.kinds:
        if kind not in by_kind:
            known = ", ".join(sorted(by_kind)) or "none"
            raise ConfigError(f"kinds: there is no handler for {kind!r}; there is for: {known}")
    chosen = settings.kinds or tuple(by_kind)
    return [by_kind[kind][0] for kind in dict.fromkeys(chosen)]


def collect_middleware(settings: Settings) -> tuple[JobMiddleware, ...]:
    """The middlewares that the settings ask for, in their order.

    Raises:
        ConfigError: One cannot be imported, or is none.
    """
    found: list[Any] = []
    for target in settings.middleware:
        given = _imported(target, "middleware")
        try:
            found += check_middleware(given)
        except ConfigError as error:
            raise ConfigError(f"{error} (from {target})") from None
    return tuple(found)


def _sources(settings: Settings, export: JobHandler | None) -> Iterable[tuple[str, Sequence[Any]]]:
    for target in settings.handlers:
        yield target, _imported(target, "handlers")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        origin = f"the entry point {entry.name!r} ({entry.value})"
        yield origin, _loaded(origin, entry.load)
    if export is not None:
        yield "--export-source", [export]


def _imported(target: str, what: str) -> list[Any]:
    module, _, attribute = target.partition(":")
    if module.endswith(".py"):
        raise ConfigError(f"{what}: {target!r} names a file: write the module, without .py")
    if not module or not attribute:
        raise ConfigError(f"{what}: {target!r} is not MODULE:ATTR, such as my_{what}:all_of_them")
    here = str(Path.cwd())
    # As `python -m` has it; a console script's path begins with the folder of the script.
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)

    def load() -> object:
        found: Any = importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
        return found

    return _loaded(target, load, what)


def _loaded(
    origin: str,
    load: Any,  # noqa: ANN401  # a callable of anything
    what: str = "handlers",
) -> list[Any]:
    try:
        found = load()
        if isinstance(found, (JobHandler, type, str)) or not isinstance(found, Iterable):
            return [found]
        return list(found)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        _logger.debug("%s could not be imported from %s", what, origin, exc_info=True)
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigError(
            f"{what} cannot be imported from {origin}: {reason} "
            "(--log-level debug shows the traceback)"
        ) from None


def _checked(handlers: Sequence[Any], origin: str) -> dict[str, JobHandler]:
    try:
        return handlers_by_kind(handlers)
    except ConfigError as error:
        raise ConfigError(f"{error} (from {origin})") from None


def _bulk_export(
    settings: Settings, public_url: str, *, requires_access_token: bool
) -> JobHandler | None:
    source, output = settings.export_source, settings.export_output
    if source is None and output is None:
        if settings.export_base_url is not None:
            raise ConfigError("export_base_url needs export_source and export_output too")
        return None
    if source is None or output is None:
        missing = "export_source" if source is None else "export_output"
        raise ConfigError(f"bulk-export needs export_source and export_output: give {missing} too")
    if not source.is_dir():
        raise ConfigError(f"export_source: {source} is not a directory")
    from hastetrio.bulk import BulkExport
    from hastetrio.bulk._handler import DEFAULT_BASE_URL

    served = public_url or settings.face.public_url
    base_url = settings.export_base_url
    if base_url is None and served:
        # Braces of a template are fields.
        served = served.replace("{", "{{").replace("}", "}}").rstrip("/")
        base_url = served + "/w/{tenant}/{project}/api/v1/fhir/r4"
    return BulkExport(
        source,
        output,
        base_url=DEFAULT_BASE_URL if base_url is None else base_url,
        requires_access_token=requires_access_token,
        pace=settings.export_pace,
    )
