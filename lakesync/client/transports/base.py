"""The protocols of transports, one for each capability. Every transport pushes and pulls; the others are optional.

Every method blocks. It raises the gateway's error as the class of `lakesync.model.errors` with its code, and
`UnreachableError` if no complete answer arrived: the gateway may or may not have processed the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse

Token = str | Callable[[], str]
"""A token, or a function that returns a valid one."""


class SyncTransport(Protocol):
    """Pushes and pulls, one call at a time. Calls come from several threads, so bind nothing to a thread."""

    def push(self, push: SyncPush) -> PushResult:
        """Push deltas; the gateway stores all of them or none."""

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Return a page of changes."""

    def close(self) -> None:
        """Close all connections."""


class Checkpoint(NamedTuple):
    """A checkpoint that is being received."""

    cursor: int
    """The header `X-Checkpoint-Hlc`: where pulling continues."""
    frames: Iterator[bytes]
    """Protobuf messages with rows."""


@runtime_checkable
class CheckpointTransport(Protocol):
    """Fetches the checkpoint from which a new client starts."""

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """Open the newest checkpoint; read its frames inside the context.

        Raises:
            NotFoundError: there is none for this client: pull from cursor 0.
        """


class ServerSchema(NamedTuple):
    """A table's schema at the gateway."""

    schema: TableSchema
    version: int


@runtime_checkable
class SchemaTransport(Protocol):
    """Reads schemas."""

    def schema(self, table: str) -> ServerSchema | None:
        """Return a table's registered schema; None for an unregistered table."""


@runtime_checkable
class ActionTransport(Protocol):
    """Executes actions."""

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Execute actions; return one outcome for each, in order."""

    def describe_actions(self) -> ActionDiscovery:
        """Return the connectors and their actions."""


@runtime_checkable
class ConnectorTypesTransport(Protocol):
    """Lists the types of connector that a gateway supports."""

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return every type, with the JSON Schema of its settings."""


class Message(NamedTuple):
    """A page that arrived on a subscription."""

    is_broadcast: bool
    """Whether the gateway sent it without a pull."""
    page: SyncResponse


class Subscription(Protocol):
    """An open connection on which the gateway also broadcasts. Apply its messages in order."""

    def pull(self, pull: SyncPull) -> None:
        """Send a pull; `receive` returns the answer."""

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            None after the timeout, or if `wake` was called.

        Raises:
            LakeSyncError: why the connection has ended.
        """

    def wake(self) -> None:
        """Make `receive` return. Threads may call it."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class RealtimeTransport(Protocol):
    """Opens subscriptions."""

    def connect(self) -> Subscription:
        """Open a subscription."""


@runtime_checkable
class NamedTransport(Protocol):
    """Knows the id of its gateway."""

    gateway_id: str


@runtime_checkable
class CancellableTransport(Protocol):
    """Can cancel requests."""

    def cancel_requests(self) -> None:
        """Make every request in progress raise `UnreachableError` at once. Later requests are not affected."""


@runtime_checkable
class ClockMeasuringTransport(Protocol):
    """Measures the gateway's clock."""

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the gateway's, to a second; None before any answer."""


@runtime_checkable
class TokenTransport(Protocol):
    """Sends a token that can be replaced."""

    def set_token(self, token: Token) -> None:
        """Send this token from now on."""
