"""Opens the staging store, the database to which gateways commit pushes, for commands that read or change it.

On SQLite, a store is opened by one process only. If that is a running gateway, the command calls the gateway, with its
service token. `lakesync erase` and `lakesync connectors test` use `open_store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from lakesync.cli import output
from lakesync.model.errors import ConfigurationError, StagingUnavailableError

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.store.pipeline import PipelineStore

_RETRY_SECONDS = 30.0
"""Seconds for which requests to a gateway that does not answer are retried."""


@contextmanager
def open_store(config: Config) -> Iterator[PipelineStore]:
    """Yield the staging store of the settings. If a gateway has it open, yield an object that calls that gateway.

    Raises:
        StagingUnavailableError: neither the store nor its gateway can be reached.
        ConfigurationError: there is no store, or a gateway owns it and there is no service token.
    """
    from lakesync.engine import Engine
    from lakesync.model.hlc import WallClock
    from lakesync.staging import configured_store, store_urls
    from lakesync.staging.remote import RemoteStore

    if config.staging.url.startswith("sqlite:"):
        store_urls.store_status(config.staging.url)  # raises if there is no store; opening would create one
    wall = WallClock(config.clock_offset_file).now_ms
    with ExitStack() as closing_store:
        engine = Engine(configured_store(config, wall), wall)
        closing_store.callback(engine.close)  # also if `open` fails: the engine may have connections already
        store: PipelineStore = engine.store
        try:
            engine.open()
        except StagingUnavailableError as error:
            if not config.gateway_owns_staging:
                raise
            url, token = _owner(config, error)
            closing_store.close()  # the engine; what follows is closed at the end
            timeout = config.limits.request_timeout_seconds
            store = RemoteStore(url, token, timeout=timeout, retry_seconds=_RETRY_SECONDS)
            closing_store.enter_context(closing(store))
            closing_store.enter_context(_report_first_retry(url))
        yield store


def _owner(config: Config, error: StagingUnavailableError) -> tuple[str, str]:
    """Return the URL and service token of the gateway that owns the store.

    Args:
        config: the settings.
        error: why the store cannot be opened here, for the message.

    Raises:
        ConfigurationError: there is no service token.
    """
    from lakesync.cli.connection import local_gateway_url
    from lakesync.cli.data_folder import read_secrets

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
