"""`lakesync erase`: one row, or all that one client wrote, out of staging for good."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import completing, output
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Data, Gateway, Json, Yes, settings
from lakesync.model.errors import ConfigurationError, StagingUnavailableError

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.records import Erasure
    from lakesync.staging.store import PipelineStore

app = command_app()

_PATIENCE_SECONDS = 30.0
"""How long a gateway that does not answer is asked again."""


@app.command(
    epilog=examples(
        ("lakesync erase --gateway shop --client alice", "all that she wrote"),
        ("lakesync erase --gateway shop --table orders --row 4711 --yes", "one row"),
    )
)
def erase(
    gateway: Gateway = None,
    table: Annotated[
        str | None, typer.Option(help="The row's table.", show_default=False, autocompletion=completing.tables)
    ] = None,
    row: Annotated[str | None, typer.Option(help="The row's id.", show_default=False)] = None,
    client: Annotated[str | None, typer.Option(help="The client whose data goes.", show_default=False)] = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Erase a row (--table and --row), or everything that a client wrote (--client), from staging for good.

    Clients that hold an erased row are told by a DELETE. What the lake holds of it is noted for the lake to erase.
    Through a gateway that runs, or, where none does, on the store itself.
    """
    from lakesync.cli.remote import which_gateway

    is_row = table is not None and row is not None and client is None
    is_client = client is not None and table is None and row is None
    if not is_row and not is_client:
        raise typer.BadParameter("name a row with --table and --row, or a client with --client")
    what = f"row {row!r} of table {table!r}" if is_row else f"everything that client {client!r} wrote"
    config = settings(data)
    chosen = which_gateway(config, gateway)
    output.confirm(f"Erase {what} in gateway {chosen!r}? Nothing brings it back.", yes=yes)
    with opened_store(config) as store:
        if client is not None:
            done = store.erase_client(chosen, client)
        else:
            done = store.erase_row(chosen, table or "", row or "")
    _tell(done, what, as_json=as_json)


def _tell(done: Erasure, what: str, *, as_json: bool) -> None:
    if as_json:
        output.record(done)
        return
    print(f"erased {what}: {done.row_count} rows, {done.deltas} deltas that waited for the lake")
    print(f"the lake has yet to erase what it holds up to arrival {done.arrival} (erasure {done.seq})", file=sys.stderr)


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
    from lakesync.cli.remote import own_address
    from lakesync.cli.secrets import kept

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
