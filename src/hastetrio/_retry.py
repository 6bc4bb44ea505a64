"""Trying again: what a handler asks for itself, and what it declares for its errors."""

from __future__ import annotations

import random
from typing import Final

import attrs

from hastetrio._errors import ConfigError
from hastetrio._model import DEFAULT_ATTEMPTS, check_duration
from hastetrio._outcome import OperationOutcomeError
from hastetrio._storable import clean_text

# What an attempt that names no delay waits for, as the shortest and the longest, in seconds.
_FIRST: Final = 1.0
_CAP: Final = 3600.0

_LONGEST_REASON: Final = 1000


class RetryLater(Exception):
    """Raised or returned by a handler: this attempt failed, run the job again later.

    Where the job has no attempts left, it fails; the client then reads `reason`.

    Args:
        after: Seconds until the next attempt; by default the back-off of the handler's policy, or
            1 s, doubled by each attempt, at most an hour.
        reason: What went wrong, for the job's `attempt_errors`. NUL and lone surrogates are
            replaced, and what is beyond 1,000 characters is cut.

    Raises:
        ValueError: `after` is negative, or not a finite number of at most ten years.
        TypeError: `reason` is not a str.
    """

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        self.after = None if after is None else check_duration(after, "after", zero=True)
        if not isinstance(reason, str):
            raise TypeError(f"the reason is a text, not {type(reason).__name__}")
        # Often made of an error's text, which may hold anything; the wish matters more.
        self.reason = clean_text(reason, _LONGEST_REASON)
        super().__init__(self.reason or "the handler asks to be run again later")


class Snooze(Exception):
    """Raised or returned by a handler: not yet, run the job again in `seconds`.

    It costs no attempt and is no failure: what the job waits for has not happened yet.

    Args:
        seconds: Until the job is run again.

    Raises:
        ValueError: `seconds` is not above 0, or not a finite number of at most ten years.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = check_duration(seconds, "seconds")
        super().__init__(f"the handler asks to be run again in {self.seconds:g} s")


def _check_errors(_: object, __: object, value: object) -> None:
    if not isinstance(value, tuple) or not value:
        raise ConfigError(f"on must be a tuple of exception classes, not {value!r}")
    for kind in value:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise ConfigError(f"on must hold exception classes, not {kind!r}")


def _as_tuple(
    value: type[Exception] | tuple[type[Exception], ...],
) -> tuple[type[Exception], ...]:
    return (value,) if isinstance(value, type) else value


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Which errors of a handler are tried again, how often and when.

    The wait after attempt n is `first * factor ** (n - 1)` seconds, at most `cap`, give or take
    the share `jitter`, so that jobs that failed together do not come back together.

    Args:
        attempts: The most attempts, the first included. A job's own `max_attempts` bounds them
            too; kick-offs and `jobs submit` give their jobs this many.
        first: Seconds after the first attempt.
        factor: What each further wait is multiplied by, 1 at least.
        cap: The longest wait, in seconds.
        jitter: From 0 to 1.
        on: The errors to try again after; of a group each must be among them. An
            `OperationOutcomeError` says what the client is to know, and is tried again only where
            `on` names it or a class derived from it.

    Raises:
        ConfigError: A value is out of range; the text names it.
    """

    attempts: int = DEFAULT_ATTEMPTS
    first: float = _FIRST
    factor: float = 2.0
    cap: float = _CAP
    jitter: float = 0.1
    on: tuple[type[Exception], ...] = attrs.field(
        default=(Exception,), validator=_check_errors, converter=_as_tuple
    )

    def __attrs_post_init__(self) -> None:
        attempts: object = self.attempts
        if isinstance(attempts, bool) or not isinstance(attempts, int) or not 2 <= attempts <= 1000:
            raise ConfigError(f"attempts must be a whole number from 2 to 1000, not {attempts!r}")
        for name, zero in (("first", True), ("cap", False)):
            try:
                check_duration(getattr(self, name), name, zero=zero)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        if self.first > self.cap:
            raise ConfigError(f"first ({self.first:g} s) must not be longer than cap")
        for name, least, most in (("factor", 1.0, 1000.0), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                raise ConfigError(f"{name} must be from {least:g} to {most:g}, not {value!r}")

    def wait(self, attempt: int) -> float:
        """Seconds to wait after this attempt (from 1), jittered."""
        try:
            seconds = min(self.first * self.factor ** (attempt - 1), self.cap)
        except OverflowError:
            seconds = self.cap if self.first else 0.0
        share = random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311
        return min(seconds * share, self.cap)

    def covers(self, error: BaseException) -> bool:
        """Whether the job is to be tried again after this error."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.covers(part) for part in error.exceptions)
        if isinstance(error, OperationOutcomeError):
            return any(
                issubclass(kind, OperationOutcomeError) and isinstance(error, kind)
                for kind in self.on
            )
        return isinstance(error, self.on)


DEFAULT_POLICY: Final = RetryPolicy()
"""The back-off of a handler that declares none, for `RetryLater` without a time."""
