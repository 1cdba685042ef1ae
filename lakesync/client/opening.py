"""The ways in: `lakesync.open`, and the reference's `create_client`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakesync.client.client import Client
from lakesync.client.coordinator import DEFAULT_HEARTBEAT, DEFAULT_INTERVAL, check_mode, check_positive
from lakesync.client.core import CoreLimits, Mode, RetryPolicy
from lakesync.client.database import Backend, LocalDB, database_of
from lakesync.client.queues import SyncQueue
from lakesync.client.store_sqlite import stored_position
from lakesync.client.transports.base import SyncTransport, Token
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import TableSchema
from lakesync.model.validation import check_address, check_gateway_id, check_id

if TYPE_CHECKING:
    from lakesync.client.transports.http import HttpTransport


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
    """Open an app's database and keep it in step with a gateway.

        with lakesync.open("app.db", url="https://…", gateway="shop", token=token, schemas=[TODOS]) as db:
            db["todos"].insert(title="Buy oat milk")
            db.sync()

    Args:
        path: an SQLite file, made where it is missing, or `:memory:`.
        url: the gateway server's address. gateway: the gateway's id there.
        token: a JWT, or a function that gives one: asked again when it is about to expire, and when it was refused.
        client_id: who this is; the `sub` of the token, or what the database says, or a new one. A function that gives
            tokens is asked for it when nobody has opened the file before.
        schemas: the synced tables; made where they are missing. Rows that they have already are taken for new ones.
        transport: in place of url, gateway and token.
        mode: `full`, `pushOnly` or `pullOnly`.
        auto_sync: synchronise in a thread from the start.
        interval: seconds between pulls of auto-sync.
        realtime: whether that thread holds a WebSocket, on which changes come at once.
        heartbeat: seconds between pulls of auto-sync while the WebSocket is open.
        retry: when requests, actions and the WebSocket are tried again.
        queue: a queue of the app's own, as `SyncQueue` has it, in place of the one in the file.
        proxy, ca, timeout: as for `HttpTransport`.

    Raises:
        ConfigurationError: an argument is missing or wrong, the file is no database, or it is another client's or
            gateway's.
        DbError: the database cannot be written now.
        SchemaError: a schema is wrong, or a table has a column of another type.
    """
    check_mode(mode)
    if isinstance(schemas, Mapping):
        raise ConfigurationError("schemas is a single schema: put it into a list, schemas=[…]")
    for name, seconds in (("interval", interval), ("heartbeat", heartbeat), ("timeout", timeout)):
        check_positive(name, seconds)
    wrong = None if client_id is None else check_id("client_id", client_id)
    if wrong is not None:
        raise ConfigurationError(wrong)
    made = None
    if transport is None:
        transport = made = _transport(url, gateway, token, realtime=realtime, proxy=proxy, ca=ca, timeout=timeout)
    if client_id is None and isinstance(token, str):
        client_id = _subject(token)
    db = LocalDB(path)
    try:
        if client_id is None and made is not None and callable(token) and not stored_position(db.conn).client_id:
            client_id = _subject(made.tokens.current() or "")
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
    """The reference's `createClient`: open, and start auto-sync.

    Args:
        name: of the database: the file `NAME.db`.
        gateway: `url`, `gatewayId`, `token`.
        auto_sync_ms: milliseconds between pulls; 0: not by itself.
        backend: `file` or `memory`.
        queue: as for `open_client`.
        coordinator_config: `syncMode`, `realtimeHeartbeatMs`, and of `RetryPolicy` `maxRetries` (`pushes`),
            `maxActionRetries` (`actions`), `reconnectBaseMs` and `reconnectMaxMs` (its delays).

    Raises:
        ConfigurationError, DbError, SchemaError: as `open_client` does.
    """
    if strange := ", ".join(sorted(gateway.keys() - {"url", "gatewayId", "token"})):
        raise ConfigurationError(f"gateway has {strange}: it takes url, gatewayId and token")
    config = dict(coordinator_config or {})
    if strange := ", ".join(sorted(config.keys() - _COORDINATOR)):
        raise ConfigurationError(f"coordinator_config has {strange}: it takes {', '.join(sorted(_COORDINATOR))}")
    usual = RetryPolicy()
    return open_client(
        database_of(name, backend),
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
            first_delay=config.get("reconnectBaseMs", usual.first_delay * 1000) / 1000,
            longest_delay=config.get("reconnectMaxMs", usual.longest_delay * 1000) / 1000,
            pushes=config.get("maxRetries", usual.pushes),
            actions=config.get("maxActionRetries", usual.actions),
        ),
        queue=queue,
    )


_COORDINATOR = frozenset(
    {"syncMode", "realtimeHeartbeatMs", "maxRetries", "maxActionRetries", "reconnectBaseMs", "reconnectMaxMs"}
)


def _transport(
    url: str | None, gateway: str | None, token: Token | None, *, realtime: bool, **options: Any
) -> HttpTransport:
    if url is None or gateway is None:
        raise ConfigurationError("say where the gateway is: url and gateway, or a transport")
    wrong = check_address("url", url) or check_gateway_id(gateway)
    if wrong is not None:
        raise ConfigurationError(wrong)
    if token == "":
        raise ConfigurationError(
            "token is empty: give a JWT, a function that gives one, or None where no secret is set"
        )
    ca = options.get("ca")
    if ca is not None and not Path(ca).exists():
        raise ConfigurationError(f"ca is {ca!r}, which is not there: name a file or folder of certificates")
    if realtime:
        from lakesync.client.transports.websocket import WebSocketTransport

        return WebSocketTransport(url, gateway, token, **options)
    from lakesync.client.transports.http import HttpTransport

    return HttpTransport(url, gateway, token, **options)


def _subject(token: str) -> str | None:
    from lakesync.client.transports.tokens import claims

    subject = claims(token).get("sub")
    return subject if isinstance(subject, str) else None
