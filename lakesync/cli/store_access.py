"""Access to the staging store for `lakesync erase` and `lakesync connectors test`.

The staging store is the database to which a gateway commits pushes. It is opened in this process, or reached through
the gateway that owns it: SQLite allows one owner only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.cli import output
from lakesync.model.errors import ConfigurationError, StagingUnavailableError

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.store.pipeline import PipelineStore

_RETRY_SECONDS = 30.0
"""Requests to a gateway that does not answer are retried for this long."""


@contextmanager
def open_store(config: Config) -> Iterator[PipelineStore]:
    """Yield the staging store of a configuration; a store that a gateway owns is reached through that gateway.

    Raises:
        StagingUnavailableError: neither the store nor its gateway can be reached.
        ConfigurationError: there is no store, or a gateway owns it and there is no service token.
    """
    from lakesync.engine import Engine
    from lakesync.model.hlc import WallClock
    from lakesync.staging import configured_store, versions
    from lakesync.staging.remote import RemoteStore

    if config.staging.url.startswith("sqlite:"):
        versions.status(config.staging.url)  # raises if there is no store; opening would create one
    wall = WallClock(config.clock_offset_file).now_ms
    engine = Engine(configured_store(config, wall), wall)
    try:
        engine.open()
    except StagingUnavailableError as error:
        if not config.staging.url.startswith("sqlite:"):
            raise
        url, token = _gateway(config, error)
        remote = RemoteStore(url, token, timeout=600.0, patience=_RETRY_SECONDS)
        try:
            with _report_first_retry(url):
                yield remote
        finally:
            remote.close()
        return
    try:
        yield engine.store
    finally:
        engine.close()


def _gateway(config: Config, error: StagingUnavailableError) -> tuple[str, str]:
    """Return the URL and service token of the gateway that owns the store.

    Args:
        config: the settings.
        error: why the store cannot be opened here, for the message.

    Raises:
        ConfigurationError: there is no service token.
    """
    from lakesync.cli.connection import local_gateway_url, read_secrets

    configured = config.service_token.get_secret_value() if config.service_token else None
    token = configured or read_secrets(config.data_dir).get("service_token")
    if not token:
        raise ConfigurationError(
            f"{error}; or set LAKESYNC_SERVICE_TOKEN to the gateway's service token and LAKESYNC_GATEWAY_URL to its URL"
        )
    return local_gateway_url(config), token


@contextmanager
def _report_first_retry(url: str) -> Iterator[None]:
    """Print one note at the first retry, instead of a log line of stamina (the library that retries) for each."""
    from stamina.instrumentation import RetryDetails, set_on_retry_hooks

    def hook(details: RetryDetails) -> None:
        if details.retry_num == 1:
            output.note(f"no gateway answers at {url}; retrying for {_RETRY_SECONDS:g} s")

    set_on_retry_hooks((hook,))
    try:
        yield
    finally:
        set_on_retry_hooks(None)
