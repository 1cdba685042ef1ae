"""Functions with which an app opens a client: `lakesync.open`, and `create_client` with the arguments of the reference.

`lakesync.open` is `open_client`. The reference is the TypeScript client whose wire protocol LakeSync uses. A client is
an app's SQLite database that is synchronised with a gateway, the app's stream of changes on the server. Auto-sync is a
thread that synchronises by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.client.client import Client
from lakesync.client.core import CoreLimits, Mode, RetryPolicy
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.client_store import stored_position
from lakesync.client.sqlite.database import Backend, LocalDB, database_file
from lakesync.client.sync.coordinator import (
    DEFAULT_HEARTBEAT,
    DEFAULT_INTERVAL_SECONDS,
    SyncCoordinator,
    check_mode,
    check_positive,
)
from lakesync.client.transports.base import RealtimeTransport, SyncTransport
from lakesync.client.transports.tokens import Token, claims
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.validation import check_address, check_gateway_id, check_id

if TYPE_CHECKING:
    from lakesync.client.transports.http import HttpTransport  # imported when used: it imports requests


def open_client(
    path: str | Path,
    *,
    url: str | None = None,
    gateway: str | None = None,
    token: Token | None = None,
    client_id: str | None = None,
    schemas: Iterable[TableSchema | Mapping[str, Any]] = (),
    transport: SyncTransport | None = None,
    mode: Mode = "full",
    auto_sync: bool | None = None,
    interval: float = DEFAULT_INTERVAL_SECONDS,
    realtime: bool = False,
    heartbeat: float = DEFAULT_HEARTBEAT,
    retry: RetryPolicy | None = None,
    queue: SyncQueue | None = None,
    proxy: str | None = None,
    ca: str | None = None,
    timeout: float = 30.0,
    limits: CoreLimits | None = None,
) -> Client:
    """Open an app's database and synchronise it with a gateway.

        with lakesync.open("app.db", url="https://…", gateway="shop", token=token, schemas=[TODOS]) as db:
            db["todos"].insert(title="Buy oat milk")
            db.sync()

    Args:
        path: an SQLite file, which is created if it does not exist, or `:memory:`.
        url: the address of the gateway server.
        gateway: the gateway's id on that server.
        token: a JWT, or a function that returns one: called before the token expires, and after it was rejected. None
            for a server without a secret.
        client_id: this client's id. None: the `sub` claim of a token string, else the id stored in the file, else the
            `sub` of the token that the function returns, else a new random id.
        schemas: schemas of the synced tables. Missing tables are created; rows that a table already has become inserts.
        transport: replaces url, gateway and token.
        mode: `full` (push and pull), `pushOnly` or `pullOnly`.
        auto_sync: whether a thread synchronises by itself from the start. None: as `realtime`, which needs the thread.
        interval: seconds between the pulls of auto-sync.
        realtime: whether auto-sync also keeps a WebSocket open, on which the gateway sends changes as they happen.
        heartbeat: seconds between the pulls of auto-sync while the WebSocket is open.
        retry: delays and attempts after failed requests, actions and WebSockets; None for the defaults.
        queue: an app's own queue, which chooses what to push next; None for the outbox in the file, which has all
            unacknowledged changes.
        proxy: the proxy's URL; None for the environment's (`HTTPS_PROXY`, `NO_PROXY`).
        ca: file or folder of trusted certificates; None for the environment's, or certifi's.
        timeout: seconds to wait for a connection, and for each part of a response.
        limits: the largest push and the largest pulled page; None for the defaults of `CoreLimits`.

    Raises:
        ConfigurationError: an argument is missing or wrong, the file is not a database, or it belongs to another
            client or gateway.
        DbError: the database cannot be written now; or, with auto-sync, another client of it is synchronising.
        SchemaError: a schema is wrong, or changes a column's type.
    """
    check_mode(mode)
    if isinstance(schemas, Mapping):
        raise ConfigurationError("schemas is a single schema: pass a list, schemas=[…]")
    for name, seconds in (("interval", interval), ("heartbeat", heartbeat), ("timeout", timeout)):
        check_positive(name, seconds)
    problem = None if client_id is None else check_id("client_id", client_id)
    if problem is not None:
        raise ConfigurationError(problem)
    if transport is not None and (url is not None or gateway is not None):
        raise ConfigurationError("a transport was passed with url or gateway, which it replaces: leave them out")
    if realtime and transport is not None and not isinstance(transport, RealtimeTransport):
        raise ConfigurationError(
            f"realtime=True needs a transport with broadcasts, and {type(transport).__name__} has none: leave it out, "
            "and shorten interval"
        )
    http_transport = None
    if transport is None:
        http_transport = _http_transport(url, gateway, token, realtime=realtime, proxy=proxy, ca=ca, timeout=timeout)
        transport = http_transport
    if client_id is None and isinstance(token, str):
        client_id = _subject(token)
    db = LocalDB(path)
    try:
        needs_id = client_id is None and not stored_position(db.conn).client_id
        if needs_id and http_transport is not None and callable(token):
            client_id = _subject(http_transport.tokens.current() or "")
        coordinator = SyncCoordinator(
            db,
            transport,
            client_id=client_id,
            schemas=schemas,
            queue=queue,
            mode=mode,
            interval=interval,
            heartbeat=heartbeat,
            retry=retry,
            limits=limits,
        )
    except BaseException:
        db.close()
        raise
    client = Client(db, coordinator)
    if realtime if auto_sync is None else auto_sync:
        try:
            coordinator.start_auto_sync()
        except BaseException:
            client.close()
            raise
    return client


def create_client(
    *,
    name: str,
    schemas: Iterable[TableSchema | Mapping[str, Any]],
    client_id: str,
    gateway: Mapping[str, Any],
    auto_sync_ms: int = 10_000,
    backend: Backend = "file",
    sync_mode: Mode = "full",
    realtime: bool = False,
    queue: SyncQueue | None = None,
    coordinator_config: Mapping[str, Any] | None = None,
) -> Client:
    """Open a client with the arguments of the reference's `createClient`, and start auto-sync.

    Args:
        name: the database's name; its file is `NAME.db`.
        schemas: schemas of the synced tables.
        client_id: this client's id.
        gateway: a mapping with `url`, `gatewayId` and `token`.
        auto_sync_ms: milliseconds between pulls; 0 starts no auto-sync.
        backend: `file`, or `memory` for a database that ends with the process.
        sync_mode: `full`, `pushOnly` or `pullOnly`; `syncMode` in `coordinator_config` has precedence.
        realtime: whether auto-sync also keeps a WebSocket open, on which the gateway sends changes as they happen.
        queue: an app's own queue, which chooses what to push next; None for the outbox in the file, which has all
            unacknowledged changes.
        coordinator_config: `syncMode`, `realtimeHeartbeatMs` (milliseconds between pulls while a WebSocket is open),
            and fields of `RetryPolicy`: `maxRetries` (`pushes`), `maxActionRetries` (`actions`), `reconnectBaseMs`
            and `reconnectMaxMs` (`first_delay` and `longest_delay`).

    Raises:
        ConfigurationError, DbError, SchemaError: as for `open_client`.
    """
    if unknown := ", ".join(sorted(gateway.keys() - {"url", "gatewayId", "token"})):
        raise ConfigurationError(f"gateway has unknown keys {unknown}: it takes url, gatewayId and token")
    config = dict(coordinator_config or {})
    if unknown := ", ".join(sorted(config.keys() - _COORDINATOR_KEYS)):
        allowed = ", ".join(sorted(_COORDINATOR_KEYS))
        raise ConfigurationError(f"coordinator_config has unknown keys {unknown}: it takes {allowed}")
    default = RetryPolicy()
    return open_client(
        database_file(name, backend),
        url=gateway.get("url"),
        gateway=gateway.get("gatewayId"),
        token=gateway.get("token"),
        client_id=client_id,
        schemas=schemas,
        mode=config.get("syncMode", sync_mode),
        auto_sync=auto_sync_ms > 0,
        interval=auto_sync_ms / 1000 or DEFAULT_INTERVAL_SECONDS,
        realtime=realtime,
        heartbeat=config.get("realtimeHeartbeatMs", DEFAULT_HEARTBEAT * 1000) / 1000,
        retry=RetryPolicy(
            first_delay=config.get("reconnectBaseMs", default.first_delay * 1000) / 1000,
            longest_delay=config.get("reconnectMaxMs", default.longest_delay * 1000) / 1000,
            pushes=config.get("maxRetries", default.pushes),
            actions=config.get("maxActionRetries", default.actions),
        ),
        queue=queue,
    )


_COORDINATOR_KEYS = frozenset(
    {"syncMode", "realtimeHeartbeatMs", "maxRetries", "maxActionRetries", "reconnectBaseMs", "reconnectMaxMs"}
)
"""The keys that `coordinator_config` may have."""


def _http_transport(
    url: str | None, gateway: str | None, token: Token | None, *, realtime: bool, **options: Any
) -> HttpTransport:
    """Return a transport for the arguments of `open_client`, after checking them.

    Raises:
        ConfigurationError: an argument is missing or wrong.
    """
    if url is None or gateway is None:
        raise ConfigurationError("no gateway was named: pass url and gateway, or a transport")
    problem = check_address("url", url) or check_gateway_id(gateway)
    if problem is not None:
        raise ConfigurationError(problem)
    if token == "":
        raise ConfigurationError(
            "token is empty: pass a JWT, a function that returns one, or None if the gateway has no secret"
        )
    ca = options.get("ca")
    if ca is not None and not Path(ca).exists():
        raise ConfigurationError(f"ca is {ca!r}, which does not exist: name a file or folder of certificates")
    if realtime:
        from lakesync.client.transports.websocket import WebSocketTransport

        return WebSocketTransport(url, gateway, token, **options)
    from lakesync.client.transports.http import HttpTransport

    return HttpTransport(url, gateway, token, **options)


def _subject(token: str) -> str | None:
    """Return the `sub` claim of a token; None if it is no JWT, or has no such claim."""
    subject = claims(token).get("sub")
    return subject if isinstance(subject, str) else None
