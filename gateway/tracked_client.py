"""What one server process knows of one client: when it last saw the client, what it sent it, and how far it is behind.

`gateway.client_tracker` has a `TrackedClient` for each client of each gateway, one app's stream of changes. A client's
*lag* is the age of the oldest change that it may see and was not sent. Finding that change needs a read of the store,
a *check*; its result stays valid until something is committed or sent. A *cursor* is the gateway's timestamp of a
commit (its *arrival*) up to which a client was sent everything: each pull names the client's cursor, and the response
has the next one. A *broadcast* is a page that the server sends over a WebSocket without a request. *Claims* are the
fields of a client's token that decide what it may see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.lag import Unsent
from lakesync.engine.subscribers import Subscriber
from lakesync.model.hlc import wall_of
from lakesync.model.types import Claims

Arrivals = tuple[tuple[str, int], ...]
"""`(shard, newest arrival)` for each shard (a staging store for some tables) of a gateway."""


class ConnectedClient(NamedTuple):
    """A client with a WebSocket to this process over which it has pulled."""

    subscriber: Subscriber
    """The client's state on this connection: which changes it was sent."""
    has_pending: bool
    """Whether a change may be queued for the client."""


class CheckResult(NamedTuple):
    """The result of a client's latest lag check."""

    unsent: Unsent | None
    """The client's oldest unsent change; None if it never pulled."""
    sent_version: object
    """The client's `sent_version` at the check."""
    arrivals: Arrivals
    """The gateway's newest arrivals at the check."""
    number: int
    """Number of the check, ascending over all clients: 1 or more."""

    def is_final(self, *, shared: bool) -> bool:
        """Return whether the result is valid until the next commit, or until this process sends the client something.

        It is not if the check stopped before it had read all changes (then `Unsent.is_complete` is False). Nor is it if
        another process may have sent the unsent change. `Unsent.since` is 0 if the check found none.

        Args:
            shared: whether other processes serve the gateway too.
        """
        return self.unsent is None or (self.unsent.is_complete and not (shared and self.unsent.since))


@dataclass(slots=True)
class TrackedClient:
    """What this process knows of one client. Times are server wall times in milliseconds since 1970.

    Methods get the client's WebSocket connection as `connected`; None if it has none.
    """

    pulled_ms: int | None = None
    """When it last pulled; None if it never did."""
    pushed_ms: int | None = None
    """When it last pushed; None if it never did."""
    disconnected_ms: int | None = None
    """When its latest WebSocket ended; None if none has."""
    cursor: int | None = None
    """The cursor in the latest response to a pull or the latest broadcast; None before the first."""
    has_more: bool = False
    """Whether more deltas were unsent when the client got that cursor."""
    requested_cursor: int | None = None
    """The cursor that the client sent in its latest pull; None before the first."""
    had_deltas: bool = False
    """Whether the response to its latest pull had deltas."""
    repeats: int = 0
    """How often in a row it has pulled with the same cursor again, although each response had deltas (changes of rows).
    A client that does this does not store what it is sent."""
    knows_resync: bool = False
    """Whether the client understands the error RESYNC_REQUIRED, and then pulls all rows again."""
    claims: Claims | None = None
    """The claims of its latest pull."""
    sent_count: int = 0
    """Incremented whenever the client was, or may have been, sent something."""
    checked: CheckResult | None = None
    """The result of its latest lag check; None before the first."""

    @property
    def seen_ms(self) -> int:
        """When this process last saw it."""
        return max(self.pulled_ms or 0, self.pushed_ms or 0, self.disconnected_ms or 0)

    @property
    def check_number(self) -> int:
        """Number of its latest lag check; 0 if it was never checked."""
        return self.checked.number if self.checked is not None else 0

    def sent_version(self, connected: ConnectedClient | None) -> object:
        """Return a value that changes whenever the client is sent something.

        Pulls are counted in `sent_count`, broadcasts change the state of the connection. The state does not matter for
        a client that repeats pulls, because it does not store what it is sent.
        """
        if connected is None or self.repeats:
            return self.sent_count
        return (self.sent_count, connected.subscriber.state, connected.has_pending)

    def is_up_to_date(self, connected: ConnectedClient | None) -> bool:
        """Return whether the client is connected and was sent every change that it may see."""
        return connected is not None and not (
            connected.has_pending or connected.subscriber.state.has_more or self.repeats
        )

    def unsent_since(self, connected: ConnectedClient | None) -> int | None:
        """Return the arrival of the oldest unsent change: 0 if everything was sent, None for an unchecked client."""
        if self.is_up_to_date(connected):
            return 0
        unsent = self.checked.unsent if self.checked is not None else None
        return None if unsent is None else unsent.since

    def tracked_cursor(self, connected: ConnectedClient | None) -> TrackedCursor:
        """Return how far the client was sent changes, as the engine needs it to compute what the client lacks."""
        if self.requested_cursor is None:
            return TrackedCursor()
        return TrackedCursor(
            # a repeat shows that the client did not store what it was sent
            self.requested_cursor if self.repeats else self.cursor,
            self.requested_cursor,
            knows_resync=self.knows_resync,
            keeps_cursor=self.repeats > 0,
            state=None if self.repeats or connected is None else connected.subscriber.state,
            claims=self.claims,
        )

    def status(self, client_id: str, connected: ConnectedClient | None, now_ms: int) -> ClientStatus:
        """Return the client's status, for operators.

        Args:
            client_id: the client's id.
            connected: its WebSocket connection; None if it has none.
            now_ms: server wall time in milliseconds since 1970.
        """
        cursor, has_more = self.cursor or 0, self.has_more
        subscriber = connected.subscriber if connected is not None else None
        if subscriber is not None and subscriber.state.cursor > cursor:
            cursor, has_more = subscriber.state.cursor, subscriber.state.has_more
        unsent = self.unsent_since(connected)
        unsent_since_ms, behind_ms = None, unsent  # behind_ms: 0 if everything was sent, None if that is unknown
        if unsent:
            unsent_since_ms = wall_of(unsent)
            behind_ms = max(1, now_ms - unsent_since_ms)
        return ClientStatus(
            client_id=client_id,
            seen_ms=self.seen_ms,
            offline_since_ms=None if connected is not None else self.seen_ms,
            pulled_ms=self.pulled_ms,
            pushed_ms=self.pushed_ms,
            cursor_hlc=cursor,
            cursor_ms=wall_of(cursor) or None,
            has_more=has_more,
            unsent_since_ms=unsent_since_ms,
            behind_ms=behind_ms,
            repeats=self.repeats,
            connected=connected is not None,
        )


class ClientStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of one client, as far as this process saw it."""

    client_id: str
    seen_ms: int
    """Server wall time of its latest push or pull, or of the end of its latest WebSocket."""
    offline_since_ms: int | None
    """`seen_ms` of a client without a WebSocket to this process; null for a client with one."""
    pulled_ms: int | None
    pushed_ms: int | None
    cursor_hlc: int
    """The cursor in the latest response to a pull or the latest broadcast; 0 before the first."""
    cursor_ms: int | None
    """Server wall time of that cursor."""
    has_more: bool
    """Whether more deltas were unsent when it got that cursor."""
    unsent_since_ms: int | None
    """Server wall time of the oldest unsent change by others that it may see; null if it was sent everything."""
    behind_ms: int | None
    """Age of that change; 0 if everything was sent; null if the client never pulled, or was not checked yet."""
    repeats: int
    """How often in a row it pulled with the same cursor although each response had deltas: it could not apply them, or
    no response reached it."""
    connected: bool
    """Whether it has a WebSocket to this process."""
