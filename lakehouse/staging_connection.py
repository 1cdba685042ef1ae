"""The pipeline's door to staging: remote where the gateway owns the store, direct on Postgres."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.engine import Engine
from lakesync.model.clock import WallClock
from lakesync.model.errors import ConfigurationError
from lakesync.staging import configured_store
from lakesync.staging.remote import RemoteStore
from lakesync.staging.store import PipelineStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config


@contextmanager
def pipeline_store(config: Config) -> Iterator[PipelineStore]:
    """The store that the configuration names, closed at the end.

    Sensors open it themselves: as a Dagster resource it would cost each tick an instance, 0.13 s of CPU.

    Raises:
        StagingUnavailableError: it cannot be reached.
        ConfigurationError: where the gateway answers, or what to show it, is not configured.
    """
    if config.gateway_owns_staging:
        remote = RemoteStore(*gateway_address(config))
        try:
            yield remote
        finally:
            remote.close()
        return
    wall = WallClock(config.clock_offset_file).now_ms
    engine = Engine(configured_store(config, wall), wall)
    engine.open()
    try:
        yield engine.store
    finally:
        engine.close()


def gateway_address(config: Config) -> tuple[str, str]:
    """Where the gateway answers, and the token to show it.

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
