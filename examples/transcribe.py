"""Parameters and results as classes, and a service that may be asked again.

Run it: hastetrio worker --handlers transcribe:transcribe
"""

from __future__ import annotations

import attrs
import trio

from hastetrio import JobContext, JobHandler, OperationOutcomeError, RetryLater, RetryPolicy


@attrs.frozen
class Recording:
    """What is to be transcribed."""

    title: str
    minutes: int = attrs.field()
    language: str = "en"

    @minutes.validator
    def _check_minutes(self, _: object, value: int) -> None:
        if not 1 <= value <= 240:
            raise ValueError("minutes must be from 1 to 240")


@attrs.frozen
class Transcript:
    """What came of it."""

    title: str
    words: int


class Service:
    """Stands for a speech service somewhere else: it may be away, or ask for patience."""

    languages = ("de", "en")

    async def transcribe_minute(self, recording: Recording, minute: int) -> int:
        """The number of words in a minute of it.

        Raises:
            ConnectionError: The service cannot be reached.
            TimeoutError: It is busy.
        """
        await trio.sleep(0.1)
        return 100 + minute % len(recording.title)


class Transcribe(JobHandler[Recording]):
    """Transcribes a recording minute by minute, and goes on where an attempt before left off."""

    kind = "transcribe"
    retries = RetryPolicy(attempts=4, first=2.0, on=(ConnectionError,))
    timeout = 3600.0

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self, context: JobContext[Recording]) -> Transcript:
        """Transcribe one recording."""
        recording = context.parameters
        if recording.language not in self._service.languages:
            # Words for the client. No policy tries that again, unless it names this error.
            raise OperationOutcomeError(
                "not-supported", f"There is no model for the language {recording.language!r}."
            )
        done, words = context.state or (0, 0)
        for minute in range(done, recording.minutes):
            try:
                words += await self._service.transcribe_minute(recording, minute)
            except TimeoutError:
                raise RetryLater(after=60, reason="the speech service is busy") from None
            await context.save_state([minute + 1, words])
            context.report(f"{minute + 1} of {recording.minutes} minutes")
        return Transcript(recording.title, words)


transcribe = Transcribe(Service())
