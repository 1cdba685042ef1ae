"""Pushes deltas of connectors and flows into gateways, for the pipeline and its Spark tasks.

A *flow* copies deltas from a backend, such as a database, into a gateway, in the name of the clients that wrote them.
`open_intake` uses an engine in this process if staging is on Postgres. A store on SQLite is open in the gateway server,
so pushes go there over HTTP. Pushes on both ways are trusted: the write scope does not apply to them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

import requests
import stamina

from lakehouse.staging_connection import gateway_address
from lakesync.engine import Engine, EngineLimits
from lakesync.model.errors import StagingUnavailableError
from lakesync.model.hlc import WallClock
from lakesync.staging import configured_store
from lakesync.staging.remote import error_of
from lakesync.wire.http_auth import BearerAuth
from lakesync.wire.json import decode_push, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.model.schema import TableSchema

_TIMEOUT = (5.0, 60.0)
"""Seconds to connect, and to wait for a response."""
_RETRY_SECONDS = 90.0
"""Seconds after the first attempt in which a request without a response is repeated. They are more than the wait for
one response, so that a request that timed out is repeated."""


class Intake(Protocol):
    """Pushes into any gateway of one staging store. A push may be repeated: known deltas change nothing."""

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: the gateway's id.
            body: a `SyncPush` as JSON.

        Raises:
            BackpressureError: the gateway has too many unflushed bytes.
            LakeSyncError: as `SyncGateway.handle_push`.
        """

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: the gateway's id.
            schema: the table's schema.
        """


OpenIntake = Callable[[], AbstractContextManager[Intake]]
"""Opens an intake. It can be sent to Spark tasks."""


@contextmanager
def open_intake(config: Config) -> Iterator[Intake]:
    """Open the intake that fits a project's staging store, and close it at the end of the block.

    Args:
        config: the project's configuration.

    Raises:
        StagingUnavailableError: the store cannot be reached.
        ConfigurationError: the gateway's URL or the service token is not configured.
    """
    if config.gateway_owns_staging:
        url, token = gateway_address(config)
        with requests.Session() as session:
            session.trust_env = False  # no proxy for a server on this machine
            session.auth = BearerAuth(token)
            session.headers["Content-Type"] = "application/json"
            yield RemoteIntake(session, url)
        return
    wall = WallClock(config.clock_offset_file).now_ms
    limits = EngineLimits(max_backpressure_bytes=config.limits.max_backpressure_bytes)
    engine = Engine(configured_store(config, wall), wall, limits, namespaces=config.namespaces)
    try:
        engine.open()  # if it fails, the store may have connections already
        yield EngineIntake(engine)
    finally:
        engine.close()


class EngineIntake:
    """Pushes into the gateways of an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        """Store the engine.

        Args:
            engine: an open engine.
        """
        self._engine = engine

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: the gateway's id.
            body: a `SyncPush` as JSON.
        """
        self._engine.gateway(gateway).handle_push(decode_push(body))  # trusted, because there are no claims

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: the gateway's id.
            schema: the table's schema.
        """
        self._engine.gateway(gateway).ensure_schema(schema)


class RemoteIntake:
    """Pushes over HTTP to the server that owns the store. A request without a response is repeated."""

    def __init__(self, session: requests.Session, url: str) -> None:
        """Store the server's address.

        Args:
            session: a session that sends the service token.
            url: the server's root URL.
        """
        self._session = session
        self._root = url.rstrip("/") + "/internal"

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway.

        Args:
            gateway: the gateway's id.
            body: a `SyncPush` as JSON.
        """
        self._post(f"{self._root}/push/{gateway}", body)

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, unless the table has one.

        Args:
            gateway: the gateway's id.
            schema: the table's schema.
        """
        self._post(f"{self._root}/tables/{gateway}", encode_json(schema))

    def _post(self, url: str, body: bytes) -> None:
        """Send a request, and repeat it while there is no response, or the server's store is unavailable.

        Raises:
            StagingUnavailableError: that is so for `_RETRY_SECONDS`.
            LakeSyncError: the server rejected the request.
        """
        for attempt in stamina.retry_context(on=StagingUnavailableError, attempts=None, timeout=_RETRY_SECONDS):
            with attempt:
                try:
                    response = self._session.post(url, data=body, timeout=_TIMEOUT)
                except requests.RequestException as error:
                    raise StagingUnavailableError(
                        f"the gateway did not answer at {url} ({error}): check that it runs"
                    ) from error
                if not response.ok:
                    raise error_of(response)
