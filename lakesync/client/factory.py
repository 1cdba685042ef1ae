"""Functions that open a client: `lakesync.open`, and the reference's `create_client`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.client.client import Client
from lakesync.client.core import CoreLimits, Mode, RetryPolicy
from lakesync.client.queues import SyncQueue
from lakesync.client.sqlite.client_store import stored_position
from lakesync.client.sqlite.database import Backend, LocalDB, database_file
from lakesync.client.sync.coordinator import DEFAULT_HEARTBEAT, DEFAULT_INTERVAL, check_mode, check_positive
from lakesync.client.transports.base import SyncTransport, Token
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
    auto_sync: bool = False,
    interval: float = DEFAULT_INTERVAL,
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
        gateway: the gateway's id there.
        token: a JWT, or a function that returns one: called before the token expires, and after it was rejected.
        client_id: this client; by default the `sub` of the token, the database's, or a new one. A token function is
            called for the `sub` if no client has opened the file before.
        schemas: of the synced tables. Missing tables are created; rows that a table already has become inserts.
        transport: in place of url, gateway and token.
        mode: `full`, `pushOnly` or `pullOnly`.
        auto_sync: synchronise in a thread from the start.
        interval: seconds between pulls of auto-sync.
        realtime: let auto-sync hold a WebSocket, on which the gateway sends changes as they happen.
        heartbeat: seconds between pulls of auto-sync while the WebSocket is open.
        retry: the delays after failures of requests, actions and the WebSocket.
        queue: a custom queue, in place of the one in the file.
        proxy: as for `HttpTransport`.
        ca: as for `HttpTransport`.
        timeout: seconds, as for `HttpTransport`.
        limits: the size of requests.

    Raises:
        ConfigurationError: an argument is missing or wrong, the file is not a database, or it belongs to another
            client or gateway.
        DbError: the database cannot be written now.
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
    http_transport = None
    if transport is None:
        http_transport = _http_transport(url, gateway, token, realtime=realtime, proxy=proxy, ca=ca, timeout=timeout)
        transport = http_transport
    if client_id is None and isinstance(token, str):
        client_id = _subject(token)
    db = LocalDB(path)
    try:
        is_new = client_id is None and not stored_position(db.conn).client_id
        if is_new and http_transport is not None and callable(token):
            client_id = _subject(http_transport.tokens.current() or "")
        client = Client(
            db,
            transport,
            client_id=client_id,
            schemas=schemas,
            mode=mode,
            limits=limits,
            interval=interval,
            heartbeat=heartbeat,
            retry=retry,
            queue=queue,
        )
    except BaseException:
        db.close()
        raise
    if auto_sync:
        client.coordinator.start_auto_sync()
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
        name: of the database; its file is `NAME.db`.
        schemas: of the synced tables.
        client_id: this client.
        gateway: a mapping with `url`, `gatewayId` and `token`.
        auto_sync_ms: milliseconds between pulls; 0 starts no auto-sync.
        backend: `file` or `memory`.
        sync_mode: `full`, `pushOnly` or `pullOnly`.
        realtime: as for `open_client`.
        queue: as for `open_client`.
        coordinator_config: `syncMode`, `realtimeHeartbeatMs`, and for `RetryPolicy` `maxRetries` (`pushes`),
            `maxActionRetries` (`actions`), `reconnectBaseMs` and `reconnectMaxMs` (the delays).

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
        interval=auto_sync_ms / 1000 or DEFAULT_INTERVAL,
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


def _http_transport(
    url: str | None, gateway: str | None, token: Token | None, *, realtime: bool, **options: Any
) -> HttpTransport:
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
    """Return the `sub` claim of a token."""
    from lakesync.client.transports.tokens import claims

    subject = claims(token).get("sub")
    return subject if isinstance(subject, str) else None
