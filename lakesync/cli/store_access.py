"""The staging store for commands: opened here, or reached through the gateway that owns it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.cli import output
from lakesync.model.errors import ConfigurationError, StagingUnavailableError

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.store import PipelineStore

_PATIENCE_SECONDS = 30.0
"""How long a gateway that does not answer is asked again."""


@contextmanager
def opened_store(config: Config) -> Iterator[PipelineStore]:
    """The store itself, or, where a gateway owns it, through that.

    Raises:
        StagingUnavailableError: neither can be reached.
        ConfigurationError: there is no store, or a gateway owns it and there is no service token to show that.
    """
    from lakesync.engine import Engine
    from lakesync.model.clock import WallClock
    from lakesync.staging import configured_store, versions
    from lakesync.staging.remote import RemoteStore

    if config.staging.url.startswith("sqlite:"):
        versions.status(config.staging.url)  # opening a store would make it
    wall = WallClock(config.clock_offset_file).now_ms
    engine = Engine(configured_store(config, wall), wall)
    try:
        engine.open()
    except StagingUnavailableError as owned:
        if not config.staging.url.startswith("sqlite:"):
            raise
        url, token = _gateway(config, owned)
        remote = RemoteStore(url, token, timeout=600.0, patience=_PATIENCE_SECONDS)
        try:
            with _retries_said_once(url):
                yield remote
        finally:
            remote.close()
        return
    try:
        yield engine.store
    finally:
        engine.close()


def _gateway(config: Config, owned: StagingUnavailableError) -> tuple[str, str]:
    """Address and service token of the gateway that owns the store."""
    from lakesync.cli.connection import own_address
    from lakesync.cli.generated_secrets import kept

    given = config.service_token.get_secret_value() if config.service_token else None
    token = given or kept(config.data_dir).get("service_token")
    if not token:
        raise ConfigurationError(
            f"{owned}; or set LAKESYNC_SERVICE_TOKEN to the gateway's, and LAKESYNC_GATEWAY_URL to its address"
        )
    return own_address(config), token


@contextmanager
def _retries_said_once(url: str) -> Iterator[None]:
    """In one sentence, where stamina would log each."""
    from stamina.instrumentation import RetryDetails, set_on_retry_hooks

    def hook(details: RetryDetails) -> None:
        if details.retry_num == 1:
            output.note(f"no gateway answers at {url}; asking again for {_PATIENCE_SECONDS:g} s")

    set_on_retry_hooks((hook,))
    try:
        yield
    finally:
        set_on_retry_hooks(None)
