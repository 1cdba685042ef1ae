"""The protocols of transports, by which a client reaches its gateway. `lakesync.client.sync` calls them.

There is one protocol for each capability. Every transport pushes and pulls (`SyncTransport`); the other protocols are
optional, and are recognised by `isinstance`. Every method blocks. If the gateway responds with an error, the method
raises the class of `lakesync.model.errors` with the error's code. If no complete response arrives, it raises
`UnreachableError`; then the gateway may or may not have processed the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse

Token = str | Callable[[], str]
"""A JWT, or a function that returns one that is valid now."""


class SyncTransport(Protocol):
    """Pushes and pulls. Several threads call it, one at a time, so nothing in it may be bound to a thread."""

    def push(self, push: SyncPush) -> PushResult:
        """Push deltas; the gateway stores all of them or none. A repeated push changes nothing."""

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Return a page: the changes after the pull's cursor, and the cursor for the next pull."""

    def close(self) -> None:
        """Close all connections."""


class Checkpoint(NamedTuple):
    """A checkpoint that is being received: all rows that a client may see, for its first sync."""

    cursor: int
    """The cursor of the pull that follows it (header `X-Checkpoint-Hlc`)."""
    frames: Iterator[bytes]
    """Protobuf messages, each with the deltas of some rows; a row is never split."""


@runtime_checkable
class CheckpointTransport(Protocol):
    """Fetches checkpoints."""

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """Open the newest checkpoint for a client; read its frames inside the context.

        Raises:
            NotFoundError: the gateway has none for this client, which then pulls from cursor 0.
        """


class ServerSchema(NamedTuple):
    """A table's schema as it is registered at the gateway."""

    schema: TableSchema
    version: int
    """From 1; it grows with every change of the schema."""


@runtime_checkable
class SchemaTransport(Protocol):
    """Reads schemas."""

    def schema(self, table: str) -> ServerSchema | None:
        """Return a table's registered schema; None for an unregistered table."""


@runtime_checkable
class ActionTransport(Protocol):
    """Executes actions."""

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Execute actions; return one outcome for each, in order. An action that was sent before runs only once."""

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
    """An open connection on which the gateway also sends pages without a pull, as rows change (broadcasts).

    Apply its messages in the order in which `receive` returns them.
    """

    def pull(self, pull: SyncPull) -> None:
        """Send a pull without waiting; `receive` returns the response, perhaps after broadcasts."""

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
        """Make a waiting `receive` return None. Any thread may call it."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class RealtimeTransport(Protocol):
    """Opens subscriptions."""

    def connect(self) -> Subscription:
        """Open a subscription to the gateway's changes."""


@runtime_checkable
class NamedTransport(Protocol):
    """Has the id of its gateway, so that a database cannot be synchronised with another gateway by mistake."""

    gateway_id: str


@runtime_checkable
class CancellableTransport(Protocol):
    """Can cancel requests."""

    def cancel_requests(self) -> None:
        """Make every request in progress raise `UnreachableError` at once. Any thread may call it."""


@runtime_checkable
class ClockMeasuringTransport(Protocol):
    """Measures the gateway's clock."""

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the gateway's, to a second; None if it is unknown."""


@runtime_checkable
class TokenTransport(Protocol):
    """Sends a token that can be replaced."""

    def set_token(self, token: Token) -> None:
        """Send this token, or the tokens of this function, from now on."""
