"""The errors that cross a wall between rooms, each telling its catcher what to do."""

from __future__ import annotations


class HastetrioError(Exception):
    """Base of every error this package raises on purpose; its text is one line for a person."""


class ProviderUnavailable(HastetrioError):
    """The storage did not answer, or answered that it cannot now. Nothing is known; ask again.

    A statement whose answer was lost may have been applied. Every call of the protocol is safe to
    repeat for that reason.
    """


class UnstorableValue(HastetrioError):
    """This one value cannot be stored (not JSON, too large, NUL, ...). Repeating cannot help."""


class UnstorableOutput(UnstorableValue):
    """The output that a handler gave to `JobContext.finish` cannot be stored."""


class LiveJobLimit(HastetrioError):
    """The project already has as many live jobs as it may.

    Attributes:
        limit: The number of live jobs that was allowed.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the project already has {limit} queued or running jobs; "
            "wait for one to finish, or cancel one"
        )
        self.limit = limit


class LeaseLost(HastetrioError):
    """The job is no longer this claim's: its lease lapsed, or it was cancelled, or has expired.

    Let it through: the handler's scope is cancelled, or about to be.
    """


class UnsupportedFeature(HastetrioError):
    """What was asked for, this storage cannot do; the text says what can."""


class SchemaError(HastetrioError):
    """The database's tables are missing, too old, or of a version this program does not know."""


class ConfigError(HastetrioError):
    """A setting that cannot be used; the text names the setting."""
