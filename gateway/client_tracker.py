"""Tracks when this process last saw each client, and how far the client is behind (its lag), for operators.

The sync routes and WebSocket connections record pushes and pulls. A client's lag is the age of its oldest unsent
change; finding it needs a read of the store (a check). So before the routes of metrics and explanations report lags,
`gateway.client_lag` checks a bounded number of clients: `checks_due` lists them, and `record_check` takes the results.
For the other clients, the routes report the results of earlier checks. A gateway, here, is one app's stream of changes;
a server has many. A client's *cursor* says up to which change it was sent everything; *claims* are the fields of its
token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from math import inf
from typing import NamedTuple

from gateway.tracked_client import Arrivals, CheckResult, ClientStatus, ConnectedClient, TrackedClient
from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.lag import LagQuery, Unsent
from lakesync.engine.subscribers import Subscriber
from lakesync.model.hlc import wall_of
from lakesync.model.types import Claims, SyncPage, SyncPull

MAX_CLIENTS = 20_000
"""Number of tracked clients over all gateways, at most. The one that was seen longest ago is removed first."""


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
    """Tracks the clients of all gateways. Use it from the event loop's thread, except `statuses`."""

    def __init__(self, wall: Callable[[], int]) -> None:
        """Start without clients.

        Args:
            wall: returns the server wall time in milliseconds since 1970.
        """
        self._wall = wall
        self._clients: OrderedDict[tuple[str, str], TrackedClient] = OrderedDict()
        """`(gateway id, client id)` → state; the client that was seen longest ago is first."""
        self._by_gateway: dict[str, dict[str, TrackedClient]] = {}
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
            return  # a source, a database from which clients pull beside the gateway's changes, has its own cursor
        client.sent_count += 1
        client.cursor, client.has_more = page.server_hlc, page.has_more
        client.knows_resync, client.claims = knows_resync, claims
        # the cursor is the same, although the response before had deltas and a newer cursor: they were not stored
        is_repeat = client.had_deltas and pull.since_hlc == client.requested_cursor
        client.had_deltas = bool(page.deltas)
        client.repeats = client.repeats + 1 if is_repeat and client.had_deltas else 0
        client.requested_cursor = pull.since_hlc

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
        # Before the first pull over a connection, its cursor is known only once the client was sent everything.
        has_cursor = not (subscriber.state.has_not_pulled and subscriber.state.has_more)
        if has_cursor and client.cursor is not None and subscriber.state.cursor >= client.cursor:
            client.sent_count += 1
            client.cursor, client.has_more = subscriber.state.cursor, subscriber.state.has_more

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

        Returns:
            A check for each of these clients; `record_check` takes its result.
        """
        due: list[str] = []
        clients = self._by_gateway.get(gateway, {})
        for name in clients if client_id is None else clients.keys() & {client_id}:
            client = clients[name]
            if client.is_up_to_date(connected.get(name)):
                continue
            checked = client.checked
            is_valid = (
                checked is not None
                and checked.sent_version == client.sent_version(connected.get(name))
                and checked.arrivals == arrivals
                and checked.is_final(shared=shared)  # a check that stopped early continues
            )
            if not is_valid:
                due.append(name)
        due.sort(key=lambda name: clients[name].check_number)
        return [_check(name, clients[name], connected.get(name)) for name in due[:limit]]

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
        if client is not None and client.sent_version(connected.get(name)) == check.sent_version:
            client.checked = CheckResult(unsent, check.sent_version, arrivals, next(self._check_numbers))

    def statuses(self, gateway: str, connected: Mapping[str, ConnectedClient], limit: int) -> list[ClientStatus]:
        """Return the status of a gateway's clients, the one furthest behind first. Call it in a worker thread.

        Args:
            gateway: the gateway's id.
            connected: client id → connection, for the gateway's connected clients.
            limit: number of clients to return, at most.
        """
        now = self._wall()
        clients = list(self._by_gateway.get(gateway, {}).items())
        found = [client.status(name, connected.get(name), now) for name, client in clients]
        return sorted(found, key=_lag_order)[:limit]

    def status(self, gateway: str, client_id: str, connected: Mapping[str, ConnectedClient]) -> ClientStatus | None:
        """Return the status of one client; None if this process has not seen it.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            connected: client id → connection, for the gateway's connected clients.
        """
        client = self._clients.get((gateway, client_id))
        return None if client is None else client.status(client_id, connected.get(client_id), self._wall())

    def lags(self, connected_clients: Callable[[str], Mapping[str, ConnectedClient]]) -> dict[str, GatewayLag]:
        """Return gateway → the lag of its clients, by their latest checks.

        Args:
            connected_clients: returns a gateway's connected clients: client id → connection.
        """
        found = {}
        for gateway, clients in self._by_gateway.items():
            connected = connected_clients(gateway)
            arrivals = [client.unsent_since(connected.get(name)) for name, client in clients.items()]
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
        return TrackedCursor() if client is None else client.tracked_cursor(connected)

    def _touch(self, gateway: str, client_id: str) -> TrackedClient:
        """Return a client's state and record that the client was seen now. Create the state of a new client.

        If there are too many clients, the one that was seen longest ago is removed.
        """
        key = (gateway, client_id)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._by_gateway.setdefault(gateway, {})[client_id] = TrackedClient()
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


def _check(client_id: str, client: TrackedClient, connected: ConnectedClient | None) -> LagCheck:
    """Return the check of one client. It continues from the client's latest result, if that is still valid."""
    version = client.sent_version(connected)
    checked = client.checked
    before = checked.unsent if checked is not None and checked.sent_version == version else None
    return LagCheck(LagQuery(client_id, client.tracked_cursor(connected), before), version)


def _lag_order(client: ClientStatus) -> tuple[float, int, str]:
    """Return the sort key that puts the client that is most behind first, and one that was never checked before it."""
    return (-inf if client.behind_ms is None else -client.behind_ms, client.cursor_hlc, client.client_id)
