"""How often a client may ask: what it is told, what it is held to, and that no job ends by it."""

from __future__ import annotations

import httpx2
import pytest
import trio
from trio.testing import MockClock

from hastetrio.fhir._polls import PollLimiter

from .harness import BASE, Tokens, client, face, issue_of
from .states import brought_to, created, kicked_off

# Polls that are answered at once before any is refused.
BURST = 10


async def polled(http: httpx2.AsyncClient, status: str, times: int) -> list[int]:
    """Ask so many times; the statuses of the answers."""
    return [(await http.get(status)).status_code for _ in range(times)]


async def test_whoever_asks_too_often_is_told_when_to_come_again(mock_clock: MockClock) -> None:
    """429 `throttled` with Retry-After, after a burst; whoever waits so long is answered."""
    async with client(face()) as http:
        status = await kicked_off(http)
        assert await polled(http, status, BURST) == [202] * BURST
        early = await http.get(status)
        assert issue_of(early)[:2] == (429, "throttled")
        wait = int(early.headers["retry-after"])
        assert wait == 1
        mock_clock.jump(wait)
        assert (await http.get(status)).status_code == 202


async def test_no_number_of_polls_ends_a_job(mock_clock: MockClock) -> None:
    """A refused poll does not touch the job, which completes and is shown at once."""
    it = face()
    async with client(it) as http:
        status = await kicked_off(http)
        assert 429 in await polled(http, status, 200)
        assert await it.provider.count_live_jobs("t1", "p1") == 1
        mock_clock.jump(1)
        await brought_to(it.provider, status.rpartition("/")[2], "completed")
        # Nothing is to be waited for any more, so that nobody asks too often.
        assert await polled(http, status, 50) == [200] * 50


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_an_ended_job_may_be_looked_at_as_often_as_anybody_likes(state: str) -> None:
    """Its answer is the same each time, and several programs may fetch it."""
    it = face()
    async with client(it) as http:
        id = await created(it.provider)
        await brought_to(it.provider, id, state)
        assert set(await polled(http, f"{BASE}/_async/{id}", 50)) <= {200, 400}


async def test_each_job_and_each_caller_is_counted_apart() -> None:
    """Nobody is refused for what somebody else asked, or for asking after another job."""
    tokens = Tokens()
    mine, theirs = tokens.add("mine", sub="ann"), tokens.add("theirs", sub="ben")
    it = face(authenticator=tokens)
    jobs = [await created(it.provider, sub) for sub in ("ann", "ann", "ben")]
    async with client(it) as http:
        first, second, other = (f"{BASE}/_async/{id}" for id in jobs)
        assert 429 in [(await http.get(first, headers=mine)).status_code for _ in range(20)]
        assert (await http.get(second, headers=mine)).status_code == 202
        assert (await http.get(other, headers=theirs)).status_code == 202
        # Not even whether the job exists is told by being refused.
        for _ in range(20):
            answer = await http.get(first, headers=theirs)
            assert issue_of(answer)[:2] == (404, "not-found")


async def test_a_throttled_client_may_cancel() -> None:
    """DELETE is no poll; afterwards the address is gone like any other."""
    async with client(face()) as http:
        status = await kicked_off(http)
        assert 429 in await polled(http, status, 20)
        assert (await http.delete(status)).status_code == 202
        assert await polled(http, status, 20) == [404] * 20


@pytest.mark.parametrize("told", [1, 2, 5, 30])
async def test_a_client_may_be_twice_as_fast_as_told(told: int, mock_clock: MockClock) -> None:
    """Clocks and networks differ: what comes a little early is not refused, however long."""
    polls = PollLimiter()
    polls.told("j", "c", told)
    for _ in range(200):
        mock_clock.jump(told / 2)
        assert polls.wait("j", "c") == 0
        polls.told("j", "c", told)


async def test_a_poll_a_second_is_never_refused(mock_clock: MockClock) -> None:
    """Medplum's client asks so, whatever it is told, and gives up the job at a 429."""
    polls = PollLimiter()
    polls.told("j", "c", 30)
    for _ in range(3600):
        mock_clock.jump(1)
        assert polls.wait("j", "c") == 0
        polls.told("j", "c", 30)


async def test_a_faster_client_is_refused_in_the_end(mock_clock: MockClock) -> None:
    """Three polls a second after an old job: most of a minute's are refused, one a second not."""
    polls = PollLimiter()
    polls.told("j", "c", 30)
    answered = 0
    for _ in range(180):
        mock_clock.jump(1 / 3)
        answered += polls.wait("j", "c") == 0
        polls.told("j", "c", 30)
    assert 60 <= answered <= 60 + BURST


async def test_what_is_remembered_is_bounded(mock_clock: MockClock) -> None:
    """Of more jobs than the limit the longest unused is forgotten, and starts anew."""
    polls = PollLimiter()
    polls.told("first", "c", 1)
    for n in range(9_999):
        polls.told(f"j{n}", "c", 1)
    polls.told("first", "c", 1)
    polls.told("last", "c", 1)
    for _ in range(BURST - 1):
        assert polls.wait("first", "c") == 0
    assert polls.wait("first", "c") == 1
    assert [polls.wait("j0", "c") for _ in range(50)] == [0] * 50


async def test_polls_of_many_at_once_are_counted_once_each() -> None:
    """However they overlap, no more than the burst is answered."""
    async with client(face()) as http:
        status = await kicked_off(http)
        answers: list[int] = []

        async def poll() -> None:
            answers.append((await http.get(status)).status_code)

        # The first one brings the bucket into being.
        await poll()
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(poll)
    assert sorted(set(answers)) == [202, 429]
    assert answers.count(202) <= BURST + 2
