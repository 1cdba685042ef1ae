"""The protocols of transports, by which a client sends requests to its gateway; and `LocalTransport`.

`lakesync.client.sync` calls a transport. There is one protocol for each capability: every transport pushes and pulls
(`SyncTransport`); the other protocols are optional, and are recognised by `isinstance`. Every method blocks. If the
gateway responds with an error, the method raises the class of `lakesync.model.errors` with the error's code. If no
complete response arrives, it raises `UnreachableError`; then the gateway may or may not have processed the request.

A *delta* is a change of some columns of one row. A *page* is a part of the deltas that a client lacks. Its *cursor* is
where the next page begins. A *broadcast* is a page that the gateway sends without a request. An *action* is a request
that the gateway executes once in an external system, through a connector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

from lakesync.client.transports.tokens import Token
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.schema import TableSchema
from lakesync.model.types import (
    ActionPush,
    ActionResponse,
    Claims,
    PushResult,
    SyncPage,
    SyncPull,
    SyncPush,
    SyncResponse,
)


class SyncTransport(Protocol):
    """Pushes and pulls. Several threads call it, one at a time, so nothing in it may be bound to a thread."""

    def push(self, push: SyncPush) -> PushResult:
        """Push deltas; the gateway stores all of them or none. A repeated push changes nothing."""

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Return a page: the changes after the pull's cursor, and the cursor for the next pull."""

    def close(self) -> None:
        """Close all connections."""


class Checkpoint(NamedTuple):
    """A checkpoint that is being received: a snapshot of all rows that a client may see, for its first sync."""

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
    """The gateway's id."""


@runtime_checkable
class CancellableTransport(Protocol):
    """Can cancel requests."""

    def cancel_requests(self) -> None:
        """Make every request in progress raise `UnreachableError` immediately. Any thread may call it."""


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


class LocalGateway(Protocol):
    """The methods of `SyncGateway` (`lakesync.engine`) that a client calls. `claims` are those of its token.

    It is a protocol, because the client and the engine must not import each other.
    """

    gateway_id: str

    def handle_push(
        self, push: SyncPush, claims: Claims | None = None, *, known_cursor: int | None = None
    ) -> PushResult:
        """Store deltas, all or none.

        Args:
            push: the deltas.
            claims: the claims of the client's token; None trusts the client id in the push.
            known_cursor: the client's cursor. Without it, the gateway sends again what it has sent since the last pull.
        """

    def submit_pull(self, pull: SyncPull, claims: Claims, *, knows_resync: bool = False) -> Future[SyncPage]:
        """Return a page.

        Args:
            pull: the pull.
            claims: the claims of the client's token.
            knows_resync: whether the client can start from the beginning again; then an unknown cursor raises
                `ResyncRequiredError`.
        """

    def handle_action(self, push: ActionPush, claims: Claims | None = None) -> ActionResponse:
        """Execute actions."""

    def describe_actions(self) -> ActionDiscovery:
        """Return the connectors and their actions."""

    def connector_types(self) -> list[ConnectorDescriptor]:
        """Return the types of connector that it supports."""

    def config(self) -> Any:
        """Return its configuration; `schemas` maps each registered table to its schema and version."""


class LocalTransport:
    """Calls a gateway in the same process, without a network: for tests, and for apps that embed a gateway.

    It fetches no checkpoints, because only the pipeline makes them.
    """

    def __init__(self, gateway: LocalGateway, claims: Mapping[str, str | list[str]] | None = None) -> None:
        """Create a transport to a gateway.

        Args:
            gateway: the gateway; `close` leaves it open.
            claims: the claims that a token would have, which decide what the client may see. `sub` is the client's id
                by default.
        """
        self._gateway = gateway
        self.gateway_id = gateway.gateway_id
        self._claims = dict(claims or {})

    def push(self, push: SyncPush) -> PushResult:
        """See `SyncTransport.push`."""
        claims = self._claims_of(push.client_id)
        return self._gateway.handle_push(push, claims, known_cursor=push.last_seen_hlc)

    def pull(self, pull: SyncPull) -> SyncResponse:
        """See `SyncTransport.pull`."""
        return self._gateway.submit_pull(pull, self._claims_of(pull.client_id), knows_resync=True).result().decoded()

    def schema(self, table: str) -> ServerSchema | None:
        """See `SchemaTransport.schema`."""
        registered = self._gateway.config().schemas.get(table)
        return None if registered is None else ServerSchema(registered.schema, registered.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """See `ActionTransport.execute_actions`."""
        return self._gateway.handle_action(push, self._claims_of(push.client_id))

    def describe_actions(self) -> ActionDiscovery:
        """See `ActionTransport.describe_actions`."""
        return self._gateway.describe_actions()

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """See `ConnectorTypesTransport.list_connector_types`."""
        return self._gateway.connector_types()

    def close(self) -> None:
        """Do nothing: the app closes its gateway."""

    def _claims_of(self, client_id: str) -> Claims:
        """Return the claims with which a client's request is served."""
        return {"sub": client_id, **self._claims}
