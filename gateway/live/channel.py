"""Broadcasts new changes to the WebSocket connections of one gateway, which is one app's stream of changes.

The channel finds the connections that a commit concerns, and sends each a page of the changes that its client lacks.
`Hub`, which has the channels of all gateways, calls `on_commit`, and a connection calls `on_ready`. These mark
connections as *due*, which means that they may lack changes. One task (`_run`) then serves the due connections.

- A *bucket key* names a bucket of the sync rules with values of claims (fields of tokens). A client sees the rows of
  certain bucket keys. A notice of a commit names the keys of the changed rows, and `SubscriptionIndex` finds the
  connections that these keys concern.
- *Own changes* concern one client alone. They are under a bucket key of this client, its *own bucket*, which begins
  with `@`. A read of the store includes it only for clients with `has_own_changes`.
- A *subscriber* is the client of one connection. Its *state* has the cursor up to which the client was sent changes,
  and the client's bucket keys. A state object is shared by connections that lack the same changes; these are a *group*,
  and one read of the store (a *scan*) returns one shared page for them.
- An *own page* is sent to one client only: because it lacks other changes than the shared page has, such as those that
  it made over another connection.
- A *sibling* is another connection of the same client, to this process or another one of the same gateway. So that
  processes know of siblings, each *announces* its connections to all of them through the store.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice

import structlog

from gateway.compat_uvicorn import websocket_frame
from gateway.errors import close_code_of
from gateway.futures import result_of
from gateway.live.connection import LiveConnection
from gateway.live.indexes import ClientConnections, SubscriptionIndex
from gateway.request_body import encode_protobuf
from gateway.tracked_client import ConnectedClient
from lakesync.auth.keys import Key
from lakesync.engine import SyncGateway
from lakesync.engine.subscribers import Newcomer, ScanResult, Subscriber, SubscriberGroup, SubscriptionState
from lakesync.model.errors import LakeSyncError, TransientError
from lakesync.model.types import SyncPage, SyncPull
from lakesync.staging.notices import Notice, Presence
from lakesync.wire.frames import FrameTag, encode_frame

log = structlog.get_logger("gateway")

_BATCH = 256
"""Number of connections that one read of the store serves."""
_PULL_BATCH = 16
"""Number of connections for which own pages are read at the same time."""
_RETRY_SECONDS = 1.0
"""Pause after an error of the store."""


class Channel:
    """Sends broadcasts to the connections of one gateway. Use it from the event loop's thread."""

    def __init__(self, gateway: SyncGateway, on_broadcast: Callable[[int], None]) -> None:
        """Create the channel, without connections.

        Args:
            gateway: the gateway whose connections it serves.
            on_broadcast: called with numbers of sent deltas, whose sum is a metric.
        """
        self._gateway = gateway
        self._on_broadcast = on_broadcast
        self._connections: set[LiveConnection] = set()
        self._clients = ClientConnections()
        """The same connections by client."""
        self._index = SubscriptionIndex()
        self._unindexed: set[LiveConnection] = set()
        """Connections whose bucket keys (what the client may see) are not known yet; every commit may concern them."""
        self._due: dict[LiveConnection, None] = {}
        """Connections that may lack changes, in the order of the commits; a dict used as an ordered set."""
        self._in_progress: list[LiveConnection] = []
        """The batch of due connections that is being served."""
        self._task: asyncio.Task[None] | None = None
        """The task that serves due connections; None while there is nothing to send."""

    def __len__(self) -> int:
        return len(self._connections)

    def connected_clients(self) -> dict[str, ConnectedClient]:
        """Return client id → connection, for the clients that have pulled over a connection."""
        found = {}
        for each in self._connections:
            if each.subscriber is not None:
                has_pending = each in self._due or each in self._in_progress
                found[each.subscriber.client_id] = ConnectedClient(each.subscriber, has_pending)
        return found

    def count_of(self, client_id: str) -> int:
        """Return the number of a client's connections to this process."""
        return self._clients.count_of(client_id)

    def subscribe(self, connection: LiveConnection) -> None:
        """Add a new connection. It gets no broadcast before its client has pulled."""
        self._connections.add(connection)
        self._unindexed.add(connection)
        self._clients.add(connection)

    def unsubscribe(self, connection: LiveConnection) -> None:
        """Remove a connection that has ended."""
        self._connections.discard(connection)
        self._clients.remove(connection)
        self._unindexed.discard(connection)
        self._index.unsubscribe(connection)
        self._due.pop(connection, None)

    def on_commit(self, notice: Notice) -> None:
        """Mark the connections that a commit concerns as due."""
        if notice.buckets is None:  # it may concern every client, as after a change of the rules or lost notices
            concerned = with_own_changes = self._connections
            for connection in self._connections:
                connection.is_announced = False  # other processes may have missed the announcement
                if notice.after_loss:  # this process may have missed the announcement of a sibling
                    self._clients.record_sibling(connection)
            self._index.clear()
            self._unindexed |= self._connections
        else:
            concerned = self._index.connections_of(notice.buckets) | self._unindexed
            own_buckets = {bucket for bucket in notice.buckets if bucket.startswith("@")}  # each of one client
            with_own_changes = self._index.connections_of(own_buckets)
            concerned |= self._clients.record_announced(notice.presence)  # which must announce themselves now
        for connection in with_own_changes:
            if connection.subscriber is not None:
                connection.subscriber.has_own_changes = True
        self._due.update(dict.fromkeys(connection for connection in concerned if connection.subscriber is not None))
        self._start()

    def on_ready(self, connection: LiveConnection) -> None:
        """Serve a connection that can receive broadcasts again, or whose client has pulled."""
        subscriber = connection.subscriber
        # if more pages follow, or its bucket keys are not computed yet, it may lack changes of earlier commits
        if subscriber is not None and (subscriber.state.has_more or not subscriber.state.subscription.buckets):
            self._due[connection] = None
        if connection in self._due:
            self._start()

    def close(self, code: int, reason: str) -> None:
        """Close all connections. If a connection's message is being served, it is closed after the response.

        Args:
            code: WebSocket close code.
            reason: the reason, which the client receives.
        """
        for connection in list(self._connections):
            connection.close(code, reason)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """Close the connections whose token was signed by one of these keys."""
        for connection in list(self._connections):
            connection.close_signed_by(keys)

    # -- broadcasts ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the task if it does not run, and a due connection can receive a broadcast."""
        if self._task is None and any(connection.check_ready() for connection in self._due):
            self._task = asyncio.ensure_future(self._run())

    def _next_batch(self) -> list[LiveConnection]:
        """Return the next due connections that can receive a broadcast."""
        ready = (connection for connection in self._due if connection.check_ready())
        return list(islice(ready, _BATCH))

    async def _run(self) -> None:
        """Serve batches of due connections until no due connection can receive a broadcast."""
        try:
            while batch := self._next_batch():
                self._in_progress = batch
                for connection in batch:
                    del self._due[connection]
                try:
                    await self._announce(batch)
                    await self._load_subscriptions(batch)
                    await self._broadcast(batch)
                except Exception as error:
                    self._requeue(batch)
                    if isinstance(error, TransientError):
                        log.warning("broadcasts delayed", gateway=self._gateway.gateway_id, reason=str(error))
                    else:
                        log.exception("broadcast failed", gateway=self._gateway.gateway_id)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._in_progress, self._task = [], None

    async def _announce(self, batch: Sequence[LiveConnection]) -> None:
        """Announce new connections to all processes of the gateway, if others use its store."""
        if not self._gateway.is_shared:
            return
        new = [
            (each, each.subscriber.client_id) for each in batch if each.subscriber is not None and not each.is_announced
        ]
        if not new:
            return
        for connection, _ in new:
            connection.is_announced = True
        try:
            await result_of(self._gateway.submit_presence([Presence(name, each.connection_id) for each, name in new]))
        except BaseException:
            for connection, _ in new:
                connection.is_announced = False
            raise

    async def _load_subscriptions(self, batch: Sequence[LiveConnection]) -> None:
        """Have the engine compute the bucket keys of connections whose keys are unknown, and index the connections.

        They are unknown (`access` is None) after a connection's first page, and after each own page.
        """
        new = []
        for connection in batch:
            subscriber = connection.subscriber
            if subscriber is not None and subscriber.state.access is None and not subscriber.state.has_more:
                new.append((connection, subscriber, subscriber.state))
        if not new:
            return
        newcomers = [Newcomer(subscriber.client_id, subscriber.claims, state) for _, subscriber, state in new]
        states = await result_of(self._gateway.submit_subscribe(newcomers))
        for (connection, subscriber, before), state in zip(new, states, strict=True):
            if connection.subscriber is subscriber and subscriber.state is before:
                self._index_connection(connection, subscriber, state)
                subscriber.state = state

    async def _broadcast(self, batch: Sequence[LiveConnection]) -> None:
        """Read the changes that the connections of a batch lack, once for each group with the same state; send them."""
        by_state: dict[SubscriptionState, list[tuple[LiveConnection, Subscriber]]] = defaultdict(list)
        for connection in batch:
            if connection.subscriber is not None:
                by_state[connection.subscriber.state].append((connection, connection.subscriber))
        groups = [self._group(state, members) for state, members in by_state.items()]
        needing_pull: list[tuple[LiveConnection, Subscriber]] = []
        results = await result_of(self._gateway.submit_scan(groups))
        for group, result in zip(groups, results, strict=True):
            needing_pull += await self._send_group(group, result, by_state[group.state])
        await self._pull(needing_pull)

    async def _send_group(
        self,
        group: SubscriberGroup,
        result: ScanResult,
        members: Sequence[tuple[LiveConnection, Subscriber]],
    ) -> list[tuple[LiveConnection, Subscriber]]:
        """Send the members of a group the changes that they lack, and return those that need an own page.

        The first of these cases that applies to a member decides:

        - The read may be too old for it, see `_is_current`: it is served again.
        - It was sent pages under other claims and lacks something: it needs an own page, from its unchanged cursor.
        - `needs_pull` is set, as after a change of the rules: it needs an own page.
        - The read has an own page for it: it is sent that page. If the page is None, it lacks nothing.
        - There is a shared page: it is sent that page.

        Args:
            group: connections with the same state, which one read of the store serves.
            result: the result of that read: the shared page, the own pages by client id, and the group's next state.
            members: the group's connections, each with its subscriber when the read began.
        """
        before, after = group.state, result.state
        shared = await _broadcast_frame(result.page, before) if result.page is not None and members else b""
        deltas = len(result.page.deltas) if result.page is not None else 0
        has_new_buckets = after.subscription != before.subscription
        sent_deltas = 0
        needing_pull = []
        for connection, subscriber in members:
            client = subscriber.client_id
            own_page = result.own_pages.get(client)
            own_frame = await _broadcast_frame(own_page, before) if own_page is not None else b""
            if not self._is_current(connection, subscriber, group):
                self._requeue((connection,))
                continue
            if client in result.with_other_claims and own_page is not None:
                needing_pull.append((connection, subscriber))
                continue
            if has_new_buckets or connection in self._unindexed:
                self._index_connection(connection, subscriber, after)
            subscriber.state = after
            if result.needs_pull:
                needing_pull.append((connection, subscriber))
            elif client in result.own_pages:
                if own_page is not None:
                    connection.send_broadcast(own_frame)
                    sent_deltas += len(own_page.deltas)
            elif shared:
                connection.send_broadcast(shared)
                sent_deltas += deltas
        self._on_broadcast(sent_deltas)
        return needing_pull

    def _is_current(self, connection: LiveConnection, subscriber: Subscriber, group: SubscriberGroup) -> bool:
        """Return whether a read for a group still says what a member lacks: the member was sent nothing meanwhile.

        Args:
            connection: the member's connection.
            subscriber: its subscriber when the read began.
            group: the group, as it was read.
        """
        client = subscriber.client_id
        # whether the read considered the client's siblings, over which it may have been sent other changes
        knew_siblings = client in group.multi_connected or client not in self._clients.multi_connected
        unchanged = connection.subscriber is subscriber and subscriber.state is group.state
        return unchanged and connection.check_ready() and knew_siblings and not subscriber.has_own_changes

    def _group(self, state: SubscriptionState, members: Sequence[tuple[LiveConnection, Subscriber]]) -> SubscriberGroup:
        """Return connections with the same state as a group that one read of the store serves.

        It clears `has_own_changes`, because the read will include these; a commit from now on sets the flag again.
        """
        clients, with_own_changes = set(), set()
        for _, subscriber in members:
            clients.add(subscriber.client_id)
            if subscriber.has_own_changes:
                with_own_changes.add(subscriber.client_id)
                subscriber.has_own_changes = False
        multi_connected = frozenset(clients & self._clients.multi_connected)
        return SubscriberGroup(state, frozenset(clients), frozenset(with_own_changes), multi_connected)

    async def _pull(self, pulls: Sequence[tuple[LiveConnection, Subscriber]]) -> None:
        """Read an own page for each connection that needs one, and send it."""
        for start in range(0, len(pulls), _PULL_BATCH):
            batch = [
                (connection, subscriber, subscriber.state)
                for connection, subscriber in pulls[start : start + _PULL_BATCH]
            ]
            futures = [result_of(self._page(subscriber)) for _, subscriber, _ in batch]
            pages = await asyncio.gather(*futures, return_exceptions=True)
            for (connection, subscriber, before), page in zip(batch, pages, strict=True):
                await self._send_page(connection, subscriber, before, page)

    def _page(self, subscriber: Subscriber) -> Future[SyncPage]:
        """Have the engine read an own page for a client, as if the client had pulled from its cursor."""
        pull = SyncPull(subscriber.client_id, subscriber.state.cursor, subscriber.state.limit)
        return self._gateway.submit_pull(
            pull,
            subscriber.claims,
            knows_resync=subscriber.state.knows_resync,
            confirmed=False,  # the client did not send this cursor, so it may not have received everything up to it
            has_not_pulled=subscriber.state.has_not_pulled,
        )

    async def _send_page(
        self,
        connection: LiveConnection,
        subscriber: Subscriber,
        before: SubscriptionState,
        page: SyncPage | BaseException,
    ) -> None:
        """Send an own page to its connection, unless the client has pulled or been sent something meanwhile."""
        frame = b"" if isinstance(page, BaseException) or not page.deltas else await _broadcast_frame(page, before)
        if isinstance(page, LakeSyncError) and not isinstance(page, TransientError):
            connection.close(*close_code_of(page))
        elif isinstance(page, BaseException):
            raise page
        elif not (connection.subscriber is subscriber and subscriber.state is before and connection.check_ready()):
            self._requeue((connection,))
        else:
            subscriber.after_page(page.server_hlc, has_more=page.has_more)
            if page.deltas:
                connection.send_broadcast(frame)
                self._on_broadcast(len(page.deltas))
            self._requeue((connection,))  # for `_load_subscriptions`: an own page makes its bucket keys unknown

    def _index_connection(self, connection: LiveConnection, subscriber: Subscriber, state: SubscriptionState) -> None:
        """Set a connection's buckets in the index to those of a state, unless the connection has ended meanwhile."""
        if connection not in self._connections:
            return
        subscription = state.subscription
        self._index.subscribe(connection, subscription.buckets | {subscriber.own_bucket}, subscription.prefixes)
        self._unindexed.discard(connection)

    def _requeue(self, connections: Iterable[LiveConnection]) -> None:
        """Mark connections as due again, because not all that they lack was sent."""
        for each in connections:
            if each in self._connections:
                self._due[each] = None
                if each.subscriber is not None:
                    each.subscriber.has_own_changes = True  # `_group` cleared it


async def _broadcast_frame(page: SyncPage, state: SubscriptionState) -> bytes:
    """Return a page as a broadcast frame; with cursor 0, which clients do not store, before the first pull.

    Until a client pulls over its connection, its own cursor is unknown. It may lack changes from before the page, which
    it would skip with the page's cursor.
    """
    if state.has_not_pulled:
        page = page._replace(server_hlc=0)
    return websocket_frame(encode_frame(FrameTag.BROADCAST, await encode_protobuf(page)))
