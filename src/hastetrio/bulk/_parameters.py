"""What a kick-off of `$export` may ask for: `_type`, `_since`, `_outputFormat`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs

from hastetrio._operation import HANDLING, TARGET
from hastetrio._outcome import Issue, IssueType, OperationOutcomeError
from hastetrio.bulk._instant import Instant, parse_instant
from hastetrio.bulk._types import RESOURCE_TYPES

OUTPUT_FORMAT: Final = "application/fhir+ndjson"
_FORMATS: Final = (OUTPUT_FORMAT, "application/ndjson", "ndjson")
_SUPPORTED: Final = ("_type", "_since", "_outputFormat")

# What the server says of a kick-off, beside what the client asks for.
_RESERVED: Final = (TARGET, HANDLING)
_LENIENT: Final = "lenient"

# A job's outcome may have 64 KiB, and an issue has 2.2 KB when every character it shows is escaped.
_MOST_ISSUES: Final = 20
_MOST_SHOWN: Final = 80

# A tenth of the problems an export lists, so that those of its data find room.
_MOST_IGNORED: Final = 100


@attrs.frozen(kw_only=True)
class ExportParameters:
    """What an export is asked for.

    Args:
        types: The resource types wanted; None for all.
        since: Only resources changed after this FHIR instant; None for all.
        ignored: What was asked for beside that and is left out, as the client allowed.
    """

    types: frozenset[str] | None = None
    since: str | None = None
    ignored: tuple[Issue, ...] = ()
    _moment: Instant | None = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        moment = None if self.since is None else parse_instant(self.since)
        if self.since is not None and moment is None:
            raise ValueError(f"since is not a FHIR instant: {self.since!r}")
        object.__setattr__(self, "_moment", moment)

    def wants(self, resource: dict[str, Any]) -> bool:
        """Whether `resource` belongs to the export.

        `_since` compares moments, strictly: a resource changed at exactly that instant was in the
        earlier export. One whose `meta.lastUpdated` is missing or not an instant is included,
        because an export that repeats a resource is better than one that silently lacks it.
        """
        if self.types is not None and resource.get("resourceType") not in self.types:
            return False
        if self._moment is None:
            return True
        meta = resource.get("meta")
        text = meta.get("lastUpdated") if isinstance(meta, dict) else None
        changed = parse_instant(text) if isinstance(text, str) else None
        return changed is None or changed > self._moment


def parse_parameters(parameters: object) -> ExportParameters:
    """What a job's `parameters` ask for; a kick-off can call it before it writes the row.

    Args:
        parameters: None, a dict with any of the keys `_type` (a comma list, or a list of such),
            `_since` and `_outputFormat`, or a FHIR Parameters resource with parameters of these
            names. A key whose value is None counts as absent. Beside them, in both forms, the
            key `$handling`: with the value "lenient" parameters that are not supported, and types
            that FHIR R4 does not have, are `ignored` instead of refused.

    Raises:
        OperationOutcomeError: With one issue for each problem, up to twenty; each names its
            parameter. Also where a `$target` is given: only whole servers are exported.
    """
    reader = _Reader(is_lenient=_is_lenient(parameters))
    result = reader.read(parameters)
    if reader.error is not None:
        raise reader.error
    return result


def _is_lenient(parameters: object) -> bool:
    return isinstance(parameters, dict) and parameters.get(HANDLING) == _LENIENT


class _Reader:
    """Reads every parameter before it gives up, so that a client learns of all problems at once."""

    def __init__(self, *, is_lenient: bool) -> None:
        self.error: OperationOutcomeError | None = None
        self._is_lenient = is_lenient
        self._issues = 0
        # A dict for its order: what a client repeats is ignored once.
        self._ignored: dict[Issue, None] = {}
        self._more_ignored: tuple[Issue, ...] = ()

    def read(self, parameters: object) -> ExportParameters:
        types: set[str] | None = None
        since: str | None = None
        seen: set[str] = set()
        self._check_target(parameters)
        for name, value in self._named_values(parameters):
            if name not in _SUPPORTED:
                self._unsupported(
                    IssueType.NOT_SUPPORTED,
                    name,
                    f"is not supported; supported are {', '.join(_SUPPORTED)}",
                )
                continue
            if name == "_type":
                types = (types or set()) | self._types(value)
                continue
            if name in seen:
                self._issue(IssueType.VALUE, name, "is given more than once")
                continue
            seen.add(name)
            if name == "_since":
                since = self._since(value)
            else:
                self._check_format(value)
        if self.error is not None:
            return ExportParameters()
        return ExportParameters(
            types=None if types is None else frozenset(types),
            since=since,
            ignored=(*self._ignored, *self._more_ignored),
        )

    def _check_target(self, parameters: object) -> None:
        target = parameters.get(TARGET) if isinstance(parameters, dict) else None
        if target is not None:
            # Never ignored: the client would get data of everybody instead of somebody.
            self._refuse(
                IssueType.NOT_SUPPORTED,
                f"The export of {_shown(target)} is not supported, only that of the whole server.",
                "Parameters",
            )

    def _named_values(self, parameters: object) -> Iterator[tuple[str, object]]:
        if parameters is None:
            return
        if not isinstance(parameters, dict):
            self._issue(
                IssueType.STRUCTURE,
                None,
                f"are a JSON object or a Parameters resource, not {_json_kind(parameters)}",
            )
        elif "resourceType" not in parameters:
            for name, value in parameters.items():
                if value is not None and name not in _RESERVED:
                    yield str(name), value
        elif parameters["resourceType"] != "Parameters":
            self._issue(
                IssueType.STRUCTURE,
                None,
                f"are a Parameters resource, not {_shown(parameters['resourceType'])}",
            )
        else:
            yield from self._of_resource(parameters.get("parameter", []))

    def _of_resource(self, elements: object) -> Iterator[tuple[str, object]]:
        if not isinstance(elements, list):
            self._issue(IssueType.STRUCTURE, None, "need a list in Parameters.parameter")
            return
        for element in elements:
            name = element.get("name") if isinstance(element, dict) else None
            if not isinstance(element, dict) or not isinstance(name, str):
                self._issue(IssueType.STRUCTURE, None, "need a name in every parameter")
                continue
            if name not in _SUPPORTED:
                yield name, None
                continue
            values = [element[key] for key in element if key.startswith("value")]
            if len(values) == 1:
                yield name, values[0]
            else:
                self._issue(IssueType.STRUCTURE, name, "needs exactly one value[x]")

    def _types(self, value: object) -> set[str]:
        lists = value if isinstance(value, list) else [value]
        names: set[str] = set()
        for part in lists:
            if not isinstance(part, str):
                self._issue(IssueType.VALUE, "_type", f"holds {_json_kind(part)}, not text")
                continue
            names.update(name.strip() for name in part.split(","))
        if not lists:
            self._issue(IssueType.VALUE, "_type", "names no resource type")
        for name in sorted(names - RESOURCE_TYPES):
            # Bulk Data Access v2, "_type": a server may process such a request where the client
            # asks for lenient handling. What is left may be no type at all; not all types.
            self._unsupported(
                IssueType.VALUE, "_type", f"holds {_shown(name)}, which is no FHIR R4 resource type"
            )
        return names & RESOURCE_TYPES

    def _since(self, value: object) -> str | None:
        if isinstance(value, str) and parse_instant(value) is not None:
            return value
        hint = ""
        # A "+" that was not escaped in a query string arrives as a blank.
        if isinstance(value, str) and parse_instant(value.replace(" ", "+")) is not None:
            hint = '; a "+" in a URL is written %2B'
        self._issue(
            IssueType.VALUE,
            "_since",
            f"is {_shown(value)}, which is no FHIR instant such as 2026-01-31T12:00:00Z{hint}",
        )
        return None

    def _check_format(self, value: object) -> None:
        if isinstance(value, str) and value.lower() in _FORMATS:
            return
        self._issue(
            IssueType.NOT_SUPPORTED,
            "_outputFormat",
            f"is {_shown(value)}; supported are {', '.join(_FORMATS)}",
        )

    def _unsupported(self, code: IssueType, name: str, text: str) -> None:
        """A client may allow a server to ignore this one."""
        if not self._is_lenient:
            self._issue(code, name, text)
            return
        if len(self._ignored) == _MOST_IGNORED:
            more = f"More was ignored; these are the first {_MOST_IGNORED}."
            self._more_ignored = (Issue(IssueType.INCOMPLETE, more, "warning"),)
            return
        diagnostics = f"The parameter {_label(name)} {text}. It was ignored."
        self._ignored[Issue(code, diagnostics, "warning", (_expression(name),))] = None

    def _issue(self, code: IssueType, name: str | None, text: str) -> None:
        if name is None:
            self._refuse(code, f"The parameters {text}.", "Parameters")
        else:
            self._refuse(code, f"The parameter {_label(name)} {text}.", _expression(name))

    def _refuse(self, code: IssueType, diagnostics: str, expression: str) -> None:
        self._issues += 1
        if self._issues > _MOST_ISSUES:
            return
        if self.error is None:
            self.error = OperationOutcomeError(code, diagnostics, expression=(expression,))
        else:
            self.error.add(code, diagnostics, expression=(expression,))


def _label(name: str) -> str:
    # The names this handler knows are plain; any other is shown quoted.
    return name if name in _SUPPORTED else _shown(name)


def _expression(name: str) -> str:
    quoted = _shown(name)[1:-1].replace("'", "\\'")
    return f"Parameters.parameter.where(name='{quoted}')"


def _shown(value: object) -> str:
    """`value` as a person may be shown it: quoted, one line, of bounded length."""
    if isinstance(value, str):
        cut = value if len(value) <= _MOST_SHOWN else value[:_MOST_SHOWN] + "..."
        return json.dumps(cut)
    return _json_kind(value)


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
