"""Opens the staging store for the pipeline: through the gateway server for SQLite, directly for Postgres.

A store on SQLite can be open in one process only, the gateway server. Dagster resources, sensors, notebooks and Spark
tasks call it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import WallClock
from lakesync.staging import configured_store
from lakesync.staging.remote import RemoteStore
from lakesync.staging.store.pipeline import PipelineStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config


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
        remote = RemoteStore(*gateway_address(config), timeout=config.limits.request_timeout_seconds)
        try:
            yield remote
        finally:
            remote.close()
        return
    wall = WallClock(config.clock_offset_file).now_ms
    engine = Engine(configured_store(config, wall), wall)
    try:
        engine.open()  # if it fails, the store may have connections already
        yield engine.store
    finally:
        engine.close()


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
