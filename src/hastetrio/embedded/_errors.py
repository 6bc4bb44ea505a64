"""What a person reads when there is no embedded server to be had."""

from __future__ import annotations

from hastetrio._errors import HastetrioError


class EmbeddedUnavailable(HastetrioError):
    """The embedded server cannot be started here; the one line says why and what to do."""
