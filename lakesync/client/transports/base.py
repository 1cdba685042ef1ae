"""The protocols of transports, one an ability: every transport pushes and pulls, the rest is optional.

Every method blocks, and raises what the gateway answered as the class of `lakesync.model.errors` that has its code.
`UnreachableError` means that no whole answer came, so that nobody knows whether it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse

Token = str | Callable[[], str]
"""A token, or what gives a good one whenever it is asked."""


class SyncTransport(Protocol):
    """Pushes and pulls, one call at a time; in a long walk from a thread of its own, so bind nothing to a thread."""

    def push(self, push: SyncPush) -> PushResult:
        """All of it is kept, or nothing."""

    def pull(self, pull: SyncPull) -> SyncResponse:
        """A page of what the client lacks."""

    def close(self) -> None:
        """Let go of connections."""


class Checkpoint(NamedTuple):
    """A checkpoint as it comes in."""

    cursor: int
    """`X-Checkpoint-Hlc`: from where to pull on."""
    frames: Iterator[bytes]
    """Protobuf messages of row states, one at a time."""


@runtime_checkable
class CheckpointTransport(Protocol):
    """Fetches what a new client starts from."""

    def checkpoint(self, client_id: str) -> AbstractContextManager[Checkpoint]:
        """The newest checkpoint; inside, its frames are read.

        Raises:
            NotFoundError: there is none for this client: pull from 0.
        """


class ServerSchema(NamedTuple):
    """A table's schema as the gateway has it."""

    schema: TableSchema
    version: int


@runtime_checkable
class SchemaTransport(Protocol):
    """Reads schemas."""

    def schema(self, table: str) -> ServerSchema | None:
        """A table's registered schema; None where there is none."""


@runtime_checkable
class ActionTransport(Protocol):
    """Asks for actions."""

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Do actions; one outcome each, in order."""

    def describe_actions(self) -> ActionDiscovery:
        """What may be asked for, by connector."""


@runtime_checkable
class ConnectorTypesTransport(Protocol):
    """Knows the types of connector that a gateway may have."""

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Every type, with the JSON Schema of its settings."""


class Line(Protocol):
    """An open connection on which the gateway also speaks unasked. What comes must be taken in order."""

    def pull(self, pull: SyncPull) -> None:
        """Ask; the answer comes by `receive`."""

    def receive(self, timeout: float | None) -> tuple[bool, SyncResponse] | None:
        """Whether it is a broadcast, and the page; None when nothing came in time, or `wake` was called.

        Raises:
            LakeSyncError: the connection has ended, and why.
        """

    def wake(self) -> None:
        """Let `receive` return; from any thread."""

    def close(self) -> None:
        """Hang up."""


@runtime_checkable
class RealtimeTransport(Protocol):
    """Opens lines."""

    def connect(self) -> Line:
        """A new line."""


@runtime_checkable
class NamedTransport(Protocol):
    """Knows which gateway it leads to."""

    gateway_id: str


@runtime_checkable
class BreakableTransport(Protocol):
    """Can end what is under way."""

    def hang_up(self) -> None:
        """Whatever is asked at the moment raises `UnreachableError` at once; from any thread. The next may be asked."""


@runtime_checkable
class MeasuredTransport(Protocol):
    """Knows the gateway's clock."""

    @property
    def clock_offset(self) -> float | None:
        """Seconds that this machine's clock is ahead of the gateway's, to a second; None before any answer."""


@runtime_checkable
class RenewableTransport(Protocol):
    """Shows a token that may be replaced."""

    def set_token(self, token: Token) -> None:
        """Show this one from now on."""
