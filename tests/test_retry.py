"""Retry policies: which waits and errors they stand for, and what is refused."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from hastetrio import (
    ConfigError,
    JobTimeout,
    OperationOutcomeError,
    ParameterMismatch,
    RetryLater,
    RetryPolicy,
    Snooze,
)
from hastetrio._model import LONGEST_DURATION

factors = st.floats(1, 1000) | st.integers(1, 1000)
caps = st.floats(1e-3, LONGEST_DURATION) | st.integers(1, int(LONGEST_DURATION))


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    """Any policy that is not refused."""
    cap = draw(caps)
    first = draw(st.floats(0, 1).map(lambda share: share * cap) | st.just(0) | st.just(cap))
    return RetryPolicy(
        first=min(first, cap),
        factor=draw(factors),
        cap=cap,
        jitter=draw(st.floats(0, 1)),
        attempts=draw(st.integers(2, 1000)),
    )


@given(policies(), st.integers(1, 1000))
@example(RetryPolicy(factor=1000.0, cap=LONGEST_DURATION), 1000)
@example(RetryPolicy(factor=1000, first=1, cap=10), 1000)
def test_a_wait_is_a_time_from_nothing_to_the_cap(policy: RetryPolicy, attempt: int) -> None:
    """Finite after any attempt, also where the power is beyond all floats."""
    wait = policy.wait(attempt)
    assert math.isfinite(wait)
    assert 0 <= wait <= policy.cap


@given(policies(), st.integers(1, 1000))
@example(RetryPolicy(first=0, factor=1000.0), 1000)
def test_a_wait_is_the_power_give_or_take_the_jitter(policy: RetryPolicy, attempt: int) -> None:
    """`first * factor ** (attempt - 1)`, cut at the cap before the jitter and after it."""
    try:
        plain = min(float(policy.first) * float(policy.factor) ** (attempt - 1), policy.cap)
    except OverflowError:
        plain = policy.cap if policy.first else 0
    wait = policy.wait(attempt)
    least, most = plain * (1 - policy.jitter), min(plain * (1 + policy.jitter), policy.cap)
    assert least * (1 - 1e-9) <= wait <= most * (1 + 1e-9)


@given(policies(), st.integers(1, 999))
def test_without_a_jitter_waits_never_become_shorter(policy: RetryPolicy, attempt: int) -> None:
    """A factor is at least 1."""
    flat = attrs.evolve(policy, jitter=0)
    assert flat.wait(attempt) <= flat.wait(attempt + 1)


def test_the_waits_of_a_policy_that_says_nothing() -> None:
    """A second, doubled by each attempt, an hour at most, give or take a tenth."""
    flat = RetryPolicy(jitter=0)
    assert [flat.wait(n) for n in (1, 2, 3, 11, 12, 13, 1000)] == [1, 2, 4, 1024, 2048, 3600, 3600]
    assert (flat.attempts, flat.on, RetryPolicy().jitter) == (3, (Exception,), 0.1)


def test_a_jitter_spreads_jobs_that_failed_together() -> None:
    """Over the whole share it names, in both directions."""
    random.seed(7)
    waits = [RetryPolicy(first=100, jitter=0.5).wait(1) for _ in range(1000)]
    assert 50 <= min(waits) < 55
    assert 145 < max(waits) <= 150
    at_the_cap = [RetryPolicy(first=100, cap=100, jitter=0.5).wait(9) for _ in range(1000)]
    assert max(at_the_cap) == 100
    assert min(at_the_cap) < 55


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"attempts": 1}, "attempts must be a whole number from 2 to 1000, not 1"),
        ({"attempts": 0}, "attempts must be a whole number"),
        ({"attempts": 1001}, "attempts must be a whole number"),
        ({"attempts": 2.0}, "attempts must be a whole number"),
        ({"attempts": True}, "attempts must be a whole number"),
        ({"attempts": None}, "attempts must be a whole number"),
        ({"first": -0.1}, "first must be a finite number of seconds, not negative"),
        ({"first": math.nan}, "first must be a finite"),
        ({"first": "1"}, "first must be a number of seconds"),
        ({"first": 3601}, "first (3601 s) must not be longer than cap"),
        ({"cap": 0}, "cap must be a finite number of seconds, more than 0"),
        ({"cap": math.inf}, "cap must be a finite"),
        ({"cap": LONGEST_DURATION * 2}, "cap must be at most"),
        ({"factor": 0.5}, "factor must be from 1 to 1000, not 0.5"),
        ({"factor": 1001}, "factor must be from 1 to 1000"),
        ({"factor": math.nan}, "factor must be from 1 to 1000"),
        ({"factor": "2"}, "factor must be from 1 to 1000"),
        ({"factor": True}, "factor must be from 1 to 1000"),
        ({"jitter": -0.1}, "jitter must be from 0 to 1, not -0.1"),
        ({"jitter": 1.1}, "jitter must be from 0 to 1"),
        ({"jitter": math.nan}, "jitter must be from 0 to 1"),
        ({"on": ()}, "on must be a tuple of exception classes, not ()"),
        ({"on": [OSError]}, "on must be a tuple of exception classes, not ["),
        ({"on": "OSError"}, "on must be a tuple of exception classes, not 'OSError'"),
        ({"on": None}, "on must be a tuple of exception classes, not None"),
        ({"on": (OSError, "x")}, "on must hold exception classes, not 'x'"),
        ({"on": (OSError(),)}, "on must hold exception classes, not OSError()"),
        ({"on": (int,)}, "on must hold exception classes, not <class 'int'>"),
        ({"on": (KeyboardInterrupt,)}, "on must hold exception classes, not <class 'Keyb"),
        ({"on": (trio.Cancelled,)}, "on must hold exception classes, not <class 'trio.Canc"),
        ({"on": (BaseException,)}, "on must hold exception classes, not <class 'BaseEx"),
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(values: dict[str, Any], says: str) -> None:
    """When it is made, in one line that begins with the name of the value."""
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**values)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_one_class_of_errors_needs_no_tuple() -> None:
    """The commonest policy names one."""
    assert RetryPolicy(on=OSError).on == (OSError,)


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    """Several errors at once."""
    return BaseExceptionGroup("several", errors)


class Busy(OperationOutcomeError):
    """An outcome of one's own."""

    def __init__(self) -> None:
        super().__init__("throttled", "busy")


@pytest.mark.parametrize(
    ("on", "error", "covered"),
    [
        ((OSError,), OSError(), True),
        ((OSError,), ConnectionResetError(), True),
        ((ConnectionError,), OSError(), False),
        ((OSError, KeyError), KeyError(), True),
        ((Exception,), ValueError(), True),
        ((Exception,), SystemExit(), False),
        ((Exception,), KeyboardInterrupt(), False),
        ((Exception,), Busy(), False),
        ((Exception,), JobTimeout(1), False),
        ((OperationOutcomeError,), Busy(), True),
        ((OperationOutcomeError,), JobTimeout(1), True),
        ((Busy,), Busy(), True),
        ((Busy,), OperationOutcomeError("value", "x"), False),
        ((Busy,), JobTimeout(1), False),
        ((JobTimeout,), JobTimeout(1), True),
        ((OSError,), group(OSError(), ConnectionError()), True),
        ((OSError,), group(OSError(), group(ConnectionError())), True),
        ((OSError,), group(OSError(), ValueError()), False),
        ((OSError,), group(OSError(), group(ConnectionError(), ValueError())), False),
        ((Exception,), group(OSError(), Busy()), False),
        ((Exception, Busy), group(OSError(), Busy()), True),
        ((Exception,), group(OSError(), SystemExit()), False),
        ((ExceptionGroup,), group(OSError()), False),
    ],
    ids=repr,
)
def test_a_policy_covers_what_it_names(
    on: tuple[type[Exception], ...], error: BaseException, covered: bool
) -> None:
    """By class; of a group every leaf; an outcome only by a class of outcomes."""
    assert RetryPolicy(on=on).covers(error) is covered


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, "5", True, 1e12, 10**400])
def test_a_wait_that_makes_no_sense_is_refused(after: Any) -> None:  # noqa: ANN401
    """Where the handler asks for it, so that its own traceback shows where."""
    with pytest.raises(ValueError, match=r"^after must be"):
        RetryLater(after)
    with pytest.raises(ValueError, match=r"^seconds must be"):
        Snooze(after)


def test_a_snooze_of_nothing_is_refused_and_a_retry_at_once_is_not() -> None:
    """A job that is put off for no time would spin, and never use up its attempts."""
    with pytest.raises(ValueError, match="seconds must be a finite number"):
        Snooze(0)
    assert RetryLater(0).after == 0
    assert RetryLater().after is None
    assert type(RetryLater(5).after) is type(Snooze(5).seconds) is float


@pytest.mark.parametrize(
    ("given", "kept"),
    [("nul \x00", "nul \ufffd"), ("\ud800", "\ufffd"), ("x" * 1001, "x" * 1000), ("", "")],
)
def test_a_reason_is_kept_as_far_as_it_can_be_stored(given: str, kept: str) -> None:
    """It is often made of an error's text; the wish to be run again does not fail by it."""
    assert RetryLater(1, given).reason == kept


@pytest.mark.parametrize("reason", [5, None, b"no"])
def test_a_reason_is_a_text(reason: Any) -> None:  # noqa: ANN401
    """Anything else is a mistake of the handler's."""
    with pytest.raises(TypeError, match="the reason is a text"):
        RetryLater(1, reason)


def test_wishes_say_what_they_are() -> None:
    """In a traceback that nobody caught."""
    assert str(RetryLater(1, "busy")) == "busy"
    assert str(RetryLater()) == "the handler asks to be run again later"
    assert str(Snooze(90)) == "the handler asks to be run again in 90 s"
    assert not issubclass(RetryLater, OperationOutcomeError)
    assert issubclass(ParameterMismatch, OperationOutcomeError)
