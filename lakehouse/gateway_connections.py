"""The pipeline's connections to gateways: opens the staging store, and pushes deltas into gateways.

A *delta* is a change of one row; a gateway is one app's stream of deltas. The staging store has what the gateways of a
project accepted. On SQLite it can be open in one process only, the gateway server, so the pipeline reaches it over
HTTP; on Postgres this process opens it. Connectors, which poll external systems, and flows, which copy deltas from a
backend, push in the same two ways: over HTTP, or with an engine (the code of gateways) in this process. Such a
connection is an *intake*. Pushes through it are trusted: the write scope, which limits what a client may write, does
not apply. Dagster resources, sensors, notebooks and Spark tasks call this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Protocol

from lakesync.engine import Engine, EngineLimits
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import OffsetClock
from lakesync.staging import configured_store
from lakesync.staging.remote import GatewayCalls, RemoteStore
from lakesync.staging.store.pipeline import FlushStore, PipelineStore
from lakesync.wire.json import decode_push, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.model.schema import TableSchema


@contextmanager
def pipeline_store(config: Config) -> Iterator[PipelineStore]:
    """Open a project's staging store, and close it at the end of the block.

    Sensors call it directly: a Dagster resource would cost each tick 0.13 s of CPU.

    Args:
        config: the project's configuration.

    Raises:
        StagingUnavailableError: the store cannot be reached.
        ConfigurationError: the gateway's URL or the service token is not configured.
    """
    if config.gateway_owns_staging:
        timeout = config.limits.request_timeout_seconds
        with closing(RemoteStore(*gateway_address(config), timeout=timeout)) as remote:
            yield remote
        return
    with _open_engine(config) as engine:
        yield engine.store


def gateway_address(config: Config) -> tuple[str, str]:
    """Return the gateway's URL and the service token.

    Raises:
        ConfigurationError: one of them is not configured.
    """
    url, token = config.gateway.url, config.service_token
    if url is None or token is None:
        missing = "LAKESYNC_GATEWAY_URL" if url is None else "LAKESYNC_SERVICE_TOKEN"
        raise ConfigurationError(
            f"staging on SQLite is reached through its gateway, and {missing} is not set: run `lakesync up`, or set it"
        )
    return url, token.get_secret_value()


_RETRY_SECONDS = 90.0
"""Seconds after the first attempt in which a push is repeated."""


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


def store_epochs(store: FlushStore, gateway: str | None = None) -> dict[str, int]:
    """Return the epochs of a staging store, by `GATEWAY/SHARD`: of one gateway, or with None of all.

    Connectors and flows store them beside their progress. If a later epoch differs (`is_rebuilt`), the store was
    rebuilt from the lake, and lacks what they had pushed and no flush had written. So they push that again.
    """
    return {f"{each.gateway}/{each.shard}": each.epoch for each in store.backlog() if gateway in (None, each.gateway)}


def is_rebuilt(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Return whether a store was rebuilt between two results of `store_epochs`. New gateways and shards do not count.

    Args:
        before: the earlier result; empty if it was never stored.
        now: the later result.
    """
    return any(now.get(name) != epoch for name, epoch in before.items())


MAX_REQUEST_BYTES = 16 << 20
"""Bytes of the deltas in one request, about, unless a single delta is larger. The gateway server accepts 64 MiB."""
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
        timeout = config.limits.request_timeout_seconds
        with closing(RemoteIntake(*gateway_address(config), timeout=timeout, retry_seconds=_RETRY_SECONDS)) as remote:
            yield remote
        return
    with _open_engine(config) as engine:
        yield EngineIntake(engine)


class EngineIntake:
    """Pushes into the gateways of an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        """Store the engine.

        Args:
            engine: an open engine.
        """
        self._engine = engine

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway, as `Intake.push`."""
        self._engine.gateway(gateway).handle_push(decode_push(body))  # trusted, because there are no claims

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, as `Intake.ensure_schema`."""
        self._engine.gateway(gateway).ensure_schema(schema)


class RemoteIntake(GatewayCalls):
    """Pushes over HTTP to the server that owns the store."""

    def push(self, gateway: str, body: bytes) -> None:
        """Push deltas into a gateway, as `Intake.push`."""
        self.post(f"push/{gateway}", body)

    def ensure_schema(self, gateway: str, schema: TableSchema) -> None:
        """Register a table's schema, as `Intake.ensure_schema`."""
        self.post(f"tables/{gateway}", encode_json(schema))


@contextmanager
def _open_engine(config: Config) -> Iterator[Engine]:
    """Open an engine over the staging store in this process, and close it at the end of the block."""
    wall = OffsetClock(config.clock_offset_file).now_ms
    limits = EngineLimits(max_backpressure_bytes=config.limits.max_backpressure_bytes)
    engine = Engine(configured_store(config, wall), wall, limits, namespaces=config.namespaces)
    try:
        engine.open()  # inside `try`, because a failed `open` may leave connections to close
        yield engine
    finally:
        engine.close()
