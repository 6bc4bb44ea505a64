"""What a kick-off of `$export` may ask for: `_type`, `_since`, `_outputFormat`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs

from hastetrio._outcome import IssueType, OperationOutcomeError
from hastetrio.bulk._instant import Instant, parse_instant
from hastetrio.bulk._types import RESOURCE_TYPES

OUTPUT_FORMAT: Final = "application/fhir+ndjson"
_FORMATS: Final = (OUTPUT_FORMAT, "application/ndjson", "ndjson")
_SUPPORTED: Final = ("_type", "_since", "_outputFormat")

# A job's outcome may have 64 KiB, and an issue has 2.2 KB when every character it shows is escaped.
_MOST_ISSUES: Final = 20
_MOST_SHOWN: Final = 80


@attrs.frozen(kw_only=True)
class ExportParameters:
    """What an export is asked for.

    Args:
        types: The resource types wanted; None for all.
        since: Only resources changed after this FHIR instant; None for all.
    """

    types: frozenset[str] | None = None
    since: str | None = None
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
            names. A key whose value is None counts as absent.

    Raises:
        OperationOutcomeError: With one issue for each problem, up to twenty; each names its
            parameter.
    """
    reader = _Reader()
    result = reader.read(parameters)
    if reader.error is not None:
        raise reader.error
    return result


class _Reader:
    """Reads every parameter before it gives up, so that a client learns of all problems at once."""

    def __init__(self) -> None:
        self.error: OperationOutcomeError | None = None
        self._issues = 0

    def read(self, parameters: object) -> ExportParameters:
        types: set[str] | None = None
        since: str | None = None
        seen: set[str] = set()
        for name, value in self._named_values(parameters):
            if name not in _SUPPORTED:
                self._issue(
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
        return ExportParameters(types=None if types is None else frozenset(types), since=since)

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
                if value is not None:
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
            self._issue(
                IssueType.VALUE, "_type", f"holds {_shown(name)}, which is no FHIR R4 resource type"
            )
        return names

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

    def _issue(self, code: IssueType, name: str | None, text: str) -> None:
        self._issues += 1
        if self._issues > _MOST_ISSUES:
            return
        if name is None:
            diagnostics, expression = f"The parameters {text}.", "Parameters"
        else:
            # The names this handler knows are plain; any other is shown quoted.
            label = name if name in _SUPPORTED else _shown(name)
            quoted = _shown(name)[1:-1].replace("'", "\\'")
            diagnostics = f"The parameter {label} {text}."
            expression = f"Parameters.parameter.where(name='{quoted}')"
        if self.error is None:
            self.error = OperationOutcomeError(code, diagnostics, expression=(expression,))
        else:
            self.error.add(code, diagnostics, expression=(expression,))


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
