"""Tracks when this process last saw each client, and how far the client is behind (its lag), for operators.

The sync routes and WebSocket connections record pushes and pulls. A client's lag is the age of its oldest unsent
change; finding it needs a read of the store. So before the routes of metrics and explanations report lags,
`gateway.client_lag` checks a bounded number of clients (`checks_due`, `record_check`). The routes report the results of
earlier checks for the other clients. A gateway, here, is one app's stream of changes; a server has many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import NamedTuple

import msgspec

from lakesync.engine.client_position import TrackedCursor
from lakesync.engine.lag import LagQuery, Unsent
from lakesync.engine.subscriptions import Subscriber
from lakesync.model.hlc import wall_of
from lakesync.model.types import Claims, SyncPage, SyncPull

MAX_CLIENTS = 20_000
"""Number of tracked clients over all gateways, at most. The one that was seen longest ago is removed first."""

Arrivals = tuple[tuple[str, int], ...]
"""`(shard, newest arrival)` for each shard of a gateway. An arrival is the gateway's hybrid clock value of a commit."""


class ConnectedClient(NamedTuple):
    """A client with a WebSocket to this process over which it has pulled."""

    subscriber: Subscriber
    """The client's state on this connection: which changes it was sent."""
    has_pending: bool
    """Whether a change may be queued for the client."""


class _CheckResult(NamedTuple):
    """The result of a client's latest lag check."""

    unsent: Unsent | None
    """The client's oldest unsent change; None if it never pulled."""
    sent_version: object
    """The client's `_sent_version` at the check."""
    arrivals: Arrivals
    """The gateway's newest arrivals at the check."""
    number: int
    """Number of the check, ascending over all clients."""


@dataclass(slots=True)
class _ClientState:
    """What this process knows of one client. Times are server wall times in milliseconds since 1970."""

    pulled_ms: int | None = None
    pushed_ms: int | None = None
    disconnected_ms: int | None = None
    """When its latest WebSocket ended."""
    cursor: int | None = None
    """The cursor in the latest response to a pull or the latest broadcast; None before the first."""
    has_more: bool = False
    """Whether more deltas were unsent when the client got that cursor."""
    since: int | None = None
    """The cursor that the client sent in its latest pull; None before the first."""
    had_deltas: bool = False
    """Whether the response to its latest pull had deltas."""
    repeats: int = 0
    """Number of pulls in a row with the same cursor, although each response had deltas."""
    knows_resync: bool = False
    """Whether the client understands the error RESYNC_REQUIRED, and then pulls all rows again."""
    claims: Claims | None = None
    """The claims of its latest pull."""
    sent_count: int = 0
    """Incremented whenever the client was, or may have been, sent something."""
    checked: _CheckResult | None = None
    """The result of its latest lag check; None before the first."""

    @property
    def seen_ms(self) -> int:
        return max(self.pulled_ms or 0, self.pushed_ms or 0, self.disconnected_ms or 0)


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


class GatewayLag(NamedTuple):
    """How far the clients of one gateway are behind."""

    clients: int
    """Number of tracked clients."""
    behind: int
    """Number of clients with an unsent change."""
    unsent_since_ms: int | None
    """Server wall time of the oldest unsent change; None if everything was sent."""


class LagCheck(NamedTuple):
    """A client whose lag has to be checked."""

    query: LagQuery
    """What the engine needs to find the client's oldest unsent change."""
    sent_version: object
    """A value that changes whenever the client is sent something, as it was when the check was planned."""


class ClientTracker:
    """Tracks the clients of all gateways. Use it from the event loop's thread, except `statuses` and `lags`."""

    def __init__(self, wall: Callable[[], int]) -> None:
        """Start without clients.

        Args:
            wall: returns the server wall time in milliseconds since 1970.
        """
        self._wall = wall
        self._clients: OrderedDict[tuple[str, str], _ClientState] = OrderedDict()
        """`(gateway id, client id)` → state; the client that was seen longest ago is first."""
        self._by_gateway: dict[str, dict[str, _ClientState]] = {}
        """Gateway id → client id → the same states; the gateway that was checked longest ago is first."""
        self._check_numbers = count(1)

    def record_push(self, gateway: str, client_id: str) -> None:
        """Record a push that was served.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
        """
        self._touch(gateway, client_id).pushed_ms = self._wall()

    def record_pull(self, gateway: str, pull: SyncPull, page: SyncPage, claims: Claims, *, knows_resync: bool) -> None:
        """Record a pull that was served.

        Args:
            gateway: the gateway's id.
            pull: the request.
            page: the page that was returned.
            claims: the claims of the client's token.
            knows_resync: whether the client understands the error RESYNC_REQUIRED.
        """
        client = self._touch(gateway, pull.client_id)
        client.pulled_ms = self._wall()
        if pull.source is not None:
            return  # a source has a cursor of its own
        client.sent_count += 1
        client.cursor, client.has_more = page.server_hlc, page.has_more
        client.knows_resync, client.claims = knows_resync, claims
        sent_same_cursor = client.had_deltas and pull.since_hlc == client.since
        client.had_deltas = bool(page.deltas)
        client.repeats = client.repeats + 1 if sent_same_cursor and client.had_deltas else 0
        client.since = pull.since_hlc

    def record_disconnect(self, gateway: str, subscriber: Subscriber) -> None:
        """Record the end of a WebSocket.

        Args:
            gateway: the gateway's id.
            subscriber: the client, and how far it was sent changes over the connection.
        """
        client = self._clients.get((gateway, subscriber.client_id))
        if client is None:
            return
        client.disconnected_ms = self._wall()
        # A client that has not pulled over this connection has no cursor before it was sent everything.
        has_cursor = not (subscriber.state.has_not_pulled and subscriber.has_more)
        if has_cursor and client.cursor is not None and subscriber.cursor >= client.cursor:
            client.sent_count += 1
            client.cursor, client.has_more = subscriber.cursor, subscriber.has_more

    def checks_due(
        self,
        gateway: str,
        arrivals: Arrivals,
        connected: Mapping[str, ConnectedClient],
        client_id: str | None = None,
        *,
        limit: int | None = None,
        shared: bool = False,
    ) -> list[LagCheck]:
        """Return the clients whose lag may have changed since their latest check, the one checked longest ago first.

        Args:
            gateway: the gateway's id.
            arrivals: the gateway's newest arrivals (its timestamps of pushes). If they are those of a client's latest
                check, nothing was pushed since.
            connected: client id → connection, for the gateway's connected clients.
            client_id: id of the only client to consider; None for all.
            limit: number of clients to return, at most; None for all.
            shared: whether other processes serve the gateway too, and may have sent changes to a client.
        """
        due: list[str] = []
        clients = self._by_gateway.get(gateway, {})
        for name in clients if client_id is None else clients.keys() & {client_id}:
            client = clients[name]
            if _is_up_to_date(client, connected.get(name)):
                continue
            checked = client.checked
            is_valid = (
                checked is not None
                and checked.sent_version == _sent_version(client, connected.get(name))
                and checked.arrivals == arrivals
                and _is_final(checked.unsent, shared)
            )
            if not is_valid:
                due.append(name)
        due.sort(key=lambda name: _check_number(clients[name]))
        return [self._check(gateway, name, clients[name], connected.get(name)) for name in due[:limit]]

    def _check(self, gateway: str, name: str, client: _ClientState, connected: ConnectedClient | None) -> LagCheck:
        """Return the check of one client. It continues from the client's latest result, if that is still valid."""
        version = _sent_version(client, connected)
        checked = client.checked
        before = checked.unsent if checked is not None and checked.sent_version == version else None
        return LagCheck(LagQuery(name, self.tracked_cursor(gateway, name, connected), before), version)

    def record_check(
        self,
        gateway: str,
        arrivals: Arrivals,
        connected: Mapping[str, ConnectedClient],
        check: LagCheck,
        unsent: Unsent | None,
    ) -> None:
        """Record the result of a check, unless the client was sent something meanwhile.

        Args:
            gateway: the gateway's id.
            arrivals: the gateway's newest arrivals before the check.
            connected: client id → connection, for the clients that are connected now.
            check: the check, as `checks_due` returned it.
            unsent: the client's oldest unsent change; None if it never pulled.
        """
        name = check.query.client_id
        client = self._clients.get((gateway, name))
        if client is not None and _sent_version(client, connected.get(name)) == check.sent_version:
            client.checked = _CheckResult(unsent, check.sent_version, arrivals, next(self._check_numbers))

    def statuses(self, gateway: str, connected: Mapping[str, ConnectedClient], limit: int) -> list[ClientStatus]:
        """Return the status of a gateway's clients, the one furthest behind first. Call it in a worker thread.

        Args:
            gateway: the gateway's id.
            connected: client id → connection, for the gateway's connected clients.
            limit: number of clients to return, at most.
        """
        now = self._wall()
        clients = list(self._by_gateway.get(gateway, {}).items())
        found = [_status(name, client, connected.get(name), now) for name, client in clients]
        return sorted(found, key=_lag_order)[:limit]

    def status(self, gateway: str, client_id: str, connected: Mapping[str, ConnectedClient]) -> ClientStatus | None:
        """Return the status of one client; None if this process has not seen it.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            connected: client id → connection, for the gateway's connected clients.
        """
        client = self._clients.get((gateway, client_id))
        return None if client is None else _status(client_id, client, connected.get(client_id), self._wall())

    def lags(self, connected_clients: Callable[[str], Mapping[str, ConnectedClient]]) -> dict[str, GatewayLag]:
        """Return gateway → the lag of its clients, by their latest checks.

        Args:
            connected_clients: returns a gateway's connected clients: client id → connection.
        """
        found = {}
        for gateway, clients in self._by_gateway.items():
            connected = connected_clients(gateway)
            arrivals = [_unsent_since(client, connected.get(name)) for name, client in clients.items()]
            unsent = [arrival for arrival in arrivals if arrival]  # without 0 (none unsent) and None (unchecked)
            oldest = min(unsent, default=None)
            found[gateway] = GatewayLag(len(clients), len(unsent), None if oldest is None else wall_of(oldest))
        return found

    def gateways(self) -> Sequence[str]:
        """Return the ids of gateways that have clients, the one whose clients were checked longest ago first."""
        return list(self._by_gateway)

    def mark_checked(self, gateway: str) -> None:
        """Move a gateway to the end of `gateways`, because its clients were checked now."""
        if gateway in self._by_gateway:
            self._by_gateway[gateway] = self._by_gateway.pop(gateway)

    def tracked_cursor(self, gateway: str, client_id: str, connected: ConnectedClient | None) -> TrackedCursor:
        """Return how far a client was sent changes, as the engine needs it to compute what the client lacks.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            connected: the client's connection; None if it has none.
        """
        client = self._clients.get((gateway, client_id))
        if client is None or client.since is None:
            return TrackedCursor()
        return TrackedCursor(
            client.since if client.repeats else client.cursor,  # a repeat shows that it did not store what it was sent
            client.since,
            knows_resync=client.knows_resync,
            keeps_cursor=client.repeats > 0,
            state=None if client.repeats or connected is None else connected.subscriber.state,
            claims=client.claims,
        )

    def _touch(self, gateway: str, client_id: str) -> _ClientState:
        """Return a client's state and record that the client was seen now. Create the state of a new client.

        If there are too many clients, the one that was seen longest ago is removed.
        """
        key = (gateway, client_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._by_gateway.setdefault(gateway, {})[client_id] = _ClientState()
            if len(self._clients) > MAX_CLIENTS:
                self._remove(*self._clients.popitem(last=False)[0])
        else:
            self._clients.move_to_end(key)
        return client

    def _remove(self, gateway: str, client_id: str) -> None:
        """Forget a client, and its gateway if it was the last one."""
        clients = self._by_gateway[gateway]
        del clients[client_id]
        if not clients:
            del self._by_gateway[gateway]


def _check_number(client: _ClientState) -> int:
    """Return the number of a client's latest check; 0 if it was never checked."""
    return client.checked.number if client.checked is not None else 0


def _sent_version(client: _ClientState, connected: ConnectedClient | None) -> object:
    """Return a value that changes whenever the client is sent something."""
    if connected is None or client.repeats:
        return client.sent_count
    return (client.sent_count, connected.subscriber.state, connected.has_pending)


def _is_up_to_date(client: _ClientState, connected: ConnectedClient | None) -> bool:
    """Return whether the client is connected and was sent every change that it may see."""
    return connected is not None and not (connected.has_pending or connected.subscriber.has_more or client.repeats)


def _is_final(unsent: Unsent | None, shared: bool) -> bool:
    """Return whether a check's result is valid until the next commit, or until this process sends the client something.

    It is not if the check stopped early, or if another process may have sent the unsent change.
    """
    return unsent is None or (unsent.done and not (shared and unsent.since))


def _unsent_since(client: _ClientState, connected: ConnectedClient | None) -> int | None:
    """Return the arrival of the oldest unsent change: 0 if everything was sent, None for an unchecked client."""
    if _is_up_to_date(client, connected):
        return 0
    unsent = client.checked.unsent if client.checked is not None else None
    return None if unsent is None else unsent.since


def _status(name: str, client: _ClientState, connected: ConnectedClient | None, now: int) -> ClientStatus:
    """Return the status of a client, by what this process knows of it and by its connection."""
    cursor, has_more = client.cursor or 0, client.has_more
    subscriber = connected.subscriber if connected is not None else None
    if subscriber is not None and subscriber.cursor > cursor:
        cursor, has_more = subscriber.cursor, subscriber.has_more
    unsent = _unsent_since(client, connected)
    since = wall_of(unsent) if unsent else None
    return ClientStatus(
        client_id=name,
        seen_ms=client.seen_ms,
        offline_since_ms=None if connected is not None else client.seen_ms,
        pulled_ms=client.pulled_ms,
        pushed_ms=client.pushed_ms,
        cursor_hlc=cursor,
        cursor_ms=wall_of(cursor) or None,
        has_more=has_more,
        unsent_since_ms=since,
        behind_ms=unsent if since is None else max(1, now - since),
        repeats=client.repeats,
        connected=connected is not None,
    )


def _lag_order(client: ClientStatus) -> tuple[float, int, str]:
    """Return the sort key that puts the client that is most behind first, and one that was never checked before it."""
    return (-inf if client.behind_ms is None else -client.behind_ms, client.cursor_hlc, client.client_id)
