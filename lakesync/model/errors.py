"""Every error that LakeSync raises on purpose, in one tree.

    LakeSyncError                         base class; INTERNAL_ERROR is also the code of an unexpected exception
    ├── TerminalError                     a repeat of the same request cannot succeed
    │   ├── ConfigurationError            CONFIGURATION_ERROR
    │   ├── RejectedError                 base class; for a push, it may list the rejected deltas
    │   │   ├── ValidationError           VALIDATION_ERROR
    │   │   │   ├── PayloadTooLargeError  VALIDATION_ERROR (413 over HTTP)
    │   │   │   └── DuplicateError        VALIDATION_ERROR (409 over HTTP)
    │   │   ├── ForbiddenError            FORBIDDEN
    │   │   ├── ClockDriftError           CLOCK_DRIFT
    │   │   └── SchemaError               SCHEMA_ERROR
    │   │       └── SchemaMismatchError   SCHEMA_ERROR (422 over HTTP, a push that does not fit)
    │   ├── AuthError                     AUTH_ERROR
    │   ├── NotFoundError                 NOT_FOUND
    │   ├── ResyncRequiredError           RESYNC_REQUIRED
    │   ├── StagingVersionError           STAGING_VERSION
    │   ├── IntegrityError                INTEGRITY_ERROR (two things that must be equal differ)
    │   └── CensusError                   CENSUS_REFUSED (a census of a source would delete more than it may)
    └── TransientError                    may succeed later; `retry_after` in seconds where it is known
        ├── RateLimitedError              RATE_LIMITED
        ├── BackpressureError             BACKPRESSURE_ERROR
        ├── StagingUnavailableError       STAGING_UNAVAILABLE
        ├── AdapterError                  ADAPTER_ERROR
        ├── FlushError                    FLUSH_ERROR
        │   └── CommitUnknownError        COMMIT_UNKNOWN (a lake commit whose outcome is unknown: read the table)
        ├── CommitConflictError           COMMIT_CONFLICT (another run wrote the lake's table meanwhile)
        ├── LakeUnavailableError          LAKE_UNAVAILABLE
        └── StartupError                  STARTUP_ERROR

The words on the right are the codes that clients get. A retry policy reads only whether an error is terminal or
transient. All packages raise these errors; the gateway maps them to HTTP statuses. A *gateway* is one app's stream of
changes, or the server that has several. *Staging* is the store that pushes are committed to. A *flush* copies its
deltas (changes of rows) to the *lake*, which consists of Iceberg tables, or to another destination.

Modules that import an *extra*, an optional part of the installation such as a database's driver, do so in
`with extra(...):`, which says how to install a missing package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import msgspec

MAX_MESSAGE_CHARS = 1000
"""The longest message that is sent or stored. A message quotes the invalid value, which may be as long as a body."""


def shortened(message: str) -> str:
    """Return a message of about `MAX_MESSAGE_CHARS` at most.

    The middle of a longer message is left out, because its end says what to do.
    """
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


class Rejection(msgspec.Struct, frozen=True, rename="camel"):
    """Why one delta of a push was rejected."""

    delta_id: str
    code: str
    """The code of the error class that fits this delta, for example `SCHEMA_ERROR`."""
    message: str


class LakeSyncError(Exception):
    """The base class. `str(error)` says what is wrong, with which value, and what to do."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    retryable: ClassVar[bool] = False
    """Whether the same request may succeed later."""
    request_id: str = ""
    """In a client, the id by which the gateway's log names the request; empty if the gateway sent none."""

    @property
    def public_message(self) -> str:
        """The message for a server's clients, without what only its operator may know."""
        return str(self)


def log_code(error: Exception) -> str:
    """Return the code of an error for a log line; the name of its class if it is no LakeSyncError."""
    return error.code if isinstance(error, LakeSyncError) else type(error).__name__


class TerminalError(LakeSyncError):
    """Repeating the same request cannot succeed."""


class TransientError(LakeSyncError):
    """The same request may succeed later."""

    retryable = True

    def __init__(self, message: str, *, details: str = "", retry_after: float | None = None) -> None:
        """Create the error.

        Args:
            message: what is wrong, with which value, and what to do.
            details: what only the operator may know, such as the server, user or file that failed. They are part of
                `str(error)`.
            retry_after: seconds to wait before the next try; None if unknown.
        """
        super().__init__(f"{message} ({details})" if details else message)
        self._message = message
        self.details = details
        self.retry_after = retry_after
        """Seconds to wait before the next try; None if unknown."""

    @property
    def public_message(self) -> str:
        """The message without the details."""
        return self._message


class ConfigurationError(TerminalError):
    """A setting is missing or invalid."""

    code = "CONFIGURATION_ERROR"


class RejectedError(TerminalError):
    """The base class of errors by which a request is rejected, for example a push with invalid deltas.

    Nothing of a rejected push is stored.
    """

    def __init__(self, message: str, rejected: Sequence[Rejection] = (), *, more: int = 0) -> None:
        """Create the error.

        Args:
            message: what is wrong, with which value, and what to do.
            rejected: the rejected deltas of a push; empty if the whole request is rejected, or is no push.
            more: how many of the rejected deltas the message does not count.
        """
        super().__init__(f"{message}; {more} more rejected, see each reason" if more else message)
        self._message = message
        self._more = more
        self.rejected = tuple(rejected)
        """The rejected deltas, so that a client can set these aside and send the others; see the constructor."""

    def with_rejections_of(self, others: Sequence[RejectedError]) -> RejectedError:
        """Return an error of the same class that also lists the deltas of other errors.

        Args:
            others: the errors of other deltas of the same push.
        """
        more = [each for error in others for each in error.rejected]
        if not more:
            return self
        return type(self)(self._message, [*self.rejected, *more], more=self._more + len(more))


class ValidationError(RejectedError):
    """The request does not have the documented form."""

    code = "VALIDATION_ERROR"


class PayloadTooLargeError(ValidationError):
    """The request's body is larger than allowed."""


class DuplicateError(ValidationError):
    """What the request would create exists already."""


class AuthError(TerminalError):
    """The token is missing, malformed, expired or signed by another secret."""

    code = "AUTH_ERROR"


class ForbiddenError(RejectedError):
    """The token is valid but does not allow this."""

    code = "FORBIDDEN"


class NotFoundError(TerminalError):
    """What the request names does not exist."""

    code = "NOT_FOUND"


class ClockDriftError(RejectedError):
    """A client's timestamp of a change (its hlc) is too far ahead of the server's clock."""

    code = "CLOCK_DRIFT"


class ResyncRequiredError(TerminalError):
    """The gateway cannot serve a pull's cursor, the number from which it continues: the client pulls again from 0."""

    code = "RESYNC_REQUIRED"


class SchemaError(RejectedError):
    """A table schema is invalid, or its change is not additive."""

    code = "SCHEMA_ERROR"


class SchemaMismatchError(SchemaError):
    """A pushed value does not fit the registered schema of its table."""


class StagingVersionError(TerminalError):
    """The staging store was written by a newer version of LakeSync."""

    code = "STAGING_VERSION"


class IntegrityError(TerminalError):
    """Two things that must be equal differ, for example staging and the lake; the work was stopped."""

    code = "INTEGRITY_ERROR"


class CensusError(TerminalError):
    """A census, the list of all ids in a polled system, lacks more rows of earlier polls than allowed.

    Nothing was deleted.
    """

    code = "CENSUS_REFUSED"


class RateLimitedError(TransientError):
    """The client sends more requests than allowed."""

    code = "RATE_LIMITED"


class BackpressureError(TransientError):
    """The gateway has more unflushed bytes than allowed."""

    code = "BACKPRESSURE_ERROR"


class StagingUnavailableError(TransientError):
    """The staging store cannot be reached or cannot write."""

    code = "STAGING_UNAVAILABLE"


class AdapterError(TransientError):
    """A backend (a database or object store) rejected a request or could not be reached."""

    code = "ADAPTER_ERROR"


class FlushError(TransientError):
    """The deltas of a flush could not be written to their destination; none of them is lost."""

    code = "FLUSH_ERROR"


class CommitUnknownError(FlushError):
    """A commit to the lake may or may not have happened; the table must be read."""

    code = "COMMIT_UNKNOWN"


class CommitConflictError(TransientError):
    """The lake rejected a commit, because another run wrote the table meanwhile; a repeat is safe."""

    code = "COMMIT_CONFLICT"


class LakeUnavailableError(TransientError):
    """Spark or the catalogue cannot be reached, or a data file of the lake cannot be read."""

    code = "LAKE_UNAVAILABLE"


class StartupError(TransientError):
    """A process that LakeSync starts did not become ready."""

    code = "STARTUP_ERROR"


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """Turn an ImportError in the `with` block into an error that names the extra.

    Args:
        name: the extra's name, as in `pip install 'lakesync[NAME]'`.
        needs: what needs the package, as the beginning of the message, for example "Postgres needs its driver".

    Raises:
        ConfigurationError: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        # an installed package may lack a library of its own, and says which
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigurationError(f"{needs}: pip install 'lakesync[{name}]'{cause}") from error
