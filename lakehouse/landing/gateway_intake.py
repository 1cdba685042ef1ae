"""How what connectors bring reaches a gateway: its own push, over HTTP where another process owns the store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import requests
import stamina

from lakehouse.staging_connection import gateway_address
from lakesync.engine import Engine, EngineLimits
from lakesync.model.clock import WallClock
from lakesync.model.errors import StagingUnavailableError
from lakesync.staging import configured_store
from lakesync.staging.remote import error_of
from lakesync.wire.json import decode_push, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.model.schema import TableSchema

_TIMEOUT = (5.0, 60.0)
_PATIENCE = 30.0


class Intake(Protocol):
    """The way into every gateway of one store. A push may be repeated: what is known changes nothing."""

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: its id.
            body: a `SyncPush` as JSON.

        Raises:
            BackpressureError: the gateway holds too much that is not yet in the lake.
            LakeSyncError: as `SyncGateway.handle_push`.
        """

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: its id.
            schema: the table's.
        """


OpenIntake = Callable[[], AbstractContextManager[Intake]]
"""Opens the way into the gateways, in whichever process it is called; goes to tasks of Spark as a value."""


@contextmanager
def open_intake(config: Config) -> Iterator[Intake]:
    """The way that the configuration leaves: the gateway's internal routes on SQLite, an engine of our own on Postgres.

    Raises:
        StagingUnavailableError: the store cannot be reached.
        ConfigurationError: where the gateway answers, or what to show it, is not configured.
    """
    if config.gateway_owns_staging:
        url, token = gateway_address(config)
        with requests.Session() as session:
            session.trust_env = False  # a proxy does not know this machine's ports
            session.headers["Authorization"] = f"Bearer {token}"
            session.headers["Content-Type"] = "application/json"
            yield RemoteIntake(session, url)
        return
    wall = WallClock(config.clock_offset_file).now_ms
    limits = EngineLimits(max_backpressure_bytes=config.limits.max_backpressure_bytes)
    engine = Engine(configured_store(config, wall), wall, limits, namespaces=config.namespaces)
    engine.open()
    try:
        yield EngineIntake(engine)
    finally:
        engine.close()


class EngineIntake:
    """Into the gateways of an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: its id.
            body: a `SyncPush` as JSON.
        """
        self._engine.gateway(gateway).handle_push(decode_push(body))

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: its id.
            schema: the table's.
        """
        self._engine.gateway(gateway).ensure_schema(schema)


class RemoteIntake:
    """Into the gateways of a server on this machine. A request whose answer was lost is made again."""

    def __init__(self, session: requests.Session, url: str) -> None:
        self._session = session
        self._root = url.rstrip("/") + "/internal"

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: its id.
            body: a `SyncPush` as JSON.
        """
        self._post(f"{self._root}/push/{gateway}", body)

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: its id.
            schema: the table's.
        """
        self._post(f"{self._root}/tables/{gateway}", encode_json(schema))

    def _post(self, url: str, body: bytes) -> None:
        for attempt in stamina.retry_context(on=StagingUnavailableError, attempts=None, timeout=_PATIENCE):
            with attempt:
                try:
                    answer = self._session.post(url, data=body, timeout=_TIMEOUT)
                except requests.RequestException as error:
                    raise StagingUnavailableError(
                        f"the gateway did not answer at {url} ({error}): see whether it runs"
                    ) from error
                if not answer.ok:
                    raise error_of(answer)
