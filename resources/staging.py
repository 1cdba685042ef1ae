"""The pipeline's door to staging: remote where the gateway owns the store, direct on Postgres."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.clock import WallClock
from lakesync.engine import Engine
from lakesync.exceptions import ConfigurationError
from lakesync.staging import configured_store
from lakesync.staging.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.staging.store import PipelineStore


@contextmanager
def pipeline_store(config: Config) -> Iterator[PipelineStore]:
    """The store that the configuration names, closed at the end.

    Raises:
        StagingUnavailableError: it cannot be reached.
        ConfigurationError: where the gateway answers, or what to show it, is not configured.
    """
    sharded = config.shard_config.stores.values() if config.shard_config is not None else ()
    if any(url.startswith("sqlite:") for url in (config.staging.url, *sharded)):
        with _gateway(config) as remote:
            yield remote
        return
    wall = WallClock(config.clock_offset_file).now_ms
    engine = Engine(configured_store(config, wall), wall)
    engine.open()
    try:
        yield engine.store
    finally:
        engine.close()


@contextmanager
def _gateway(config: Config) -> Iterator[RemoteStore]:
    """SQLite has one owner, the gateway process."""
    url, token = config.gateway.url, config.service_token
    if url is None or token is None:
        missing = "LAKESYNC_GATEWAY_URL" if url is None else "LAKESYNC_SERVICE_TOKEN"
        raise ConfigurationError(
            f"staging on SQLite is reached through its gateway, and {missing} is not set: run `lakesync up`, or set it"
        )
    store = RemoteStore(url, token.get_secret_value())
    try:
        yield store
    finally:
        store.close()
