"""`lakesync staging` and `lakesync erase`: commands on the staging store, the database to which gateways commit pushes.

`staging` inspects, upgrades and rebuilds it. `erase` erases a row or a client's data; the pipeline then erases it from
the lake. A gateway is one app's stream of pushes; a push has deltas (changes of rows). A shard is a set of tables with
a store of its own. Without shards there is one store for all tables, whose shard is named "" here. An epoch identifies
one copy of a store, so a rebuild begins a new one. The ledger has the ids of all accepted deltas. An arrival is the
gateway's timestamp of a push. The store's log has the pushes, numbered by a *sequence*, until they are *flushed* to the
lake and *trimmed* (deleted from the log).

On SQLite, a store is opened by one process only. If that is a running gateway, `open_store` calls its internal routes,
with its service token. `lakesync connectors test` uses it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli import output
from lakesync.cli.commands import Data, Gateway, Json, Yes, command_app, complete_tables, examples, load_settings
from lakesync.model.errors import ConfigurationError, StagingUnavailableError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from lakesync.config import Config
    from lakesync.staging.migrations import Status
    from lakesync.staging.store.pipeline import PipelineStore

staging_app = command_app(
    "Inspect, upgrade and rebuild the staging store.",
    examples(
        ("lakesync staging status", "schema versions, size, and progress of each gateway"),
        ("lakesync staging migrate", "after an upgrade of LakeSync"),
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
    ),
)

erase_app = command_app()

_RETRY_SECONDS = 30.0
"""Seconds for which requests to a gateway that does not answer are retried."""

StagingUrl = Annotated[
    str | None,
    typer.Option("--staging", help="Store: sqlite:///ABSOLUTE/FOLDER or postgresql://…; default: [staging] url."),
]


@staging_app.command(
    epilog=examples(
        ("lakesync staging status", "the store of lakesync.toml"),
        ("lakesync staging status --staging postgresql://user:password@host/db --json", "another store, as JSON"),
    )
)
def status(staging: StagingUrl = None, data: Data = None, *, as_json: Json = False) -> None:
    """Show schema versions, size and each gateway's progress.

    The store may be in use. With shards, all stores are shown.
    """
    from lakesync.staging import store_urls

    statuses = {shard: store_urls.store_status(url) for shard, url in _urls_by_shard(data, staging).items()}
    if as_json:
        output.print_json(statuses.get("", statuses))  # without shards: the only one
        return
    for store_status in statuses.values():
        _print_status(store_status)


@staging_app.command(
    epilog=examples(
        ("lakesync staging migrate", "the store of lakesync.toml"),
        ("lakesync staging migrate --data /var/lib/lakesync", "the store in that folder"),
    )
)
def migrate(staging: StagingUrl = None, data: Data = None, *, as_json: Json = False) -> None:
    """Upgrade the store's schema in place, keeping its data.

    A gateway does the same when it starts. On SQLite, stop the gateway first. A store that a newer LakeSync wrote is
    rejected and not changed. With shards, all stores are upgraded, or none if any is rejected.
    """
    from lakesync.staging import store_urls

    upgrades_by_shard = store_urls.upgrade_stores(_urls_by_shard(data, staging))
    if as_json:
        output.print_json(upgrades_by_shard.get("", upgrades_by_shard))
        return
    for shard, upgrades in upgrades_by_shard.items():
        for each in upgrades:
            change = (
                f"{each.before} → {each.after}" if each.before != each.after else f"{each.after}, no upgrade needed"
            )
            print(f"{f'shard {shard}, ' if shard else ''}{each.database}: schema version {change}")


@staging_app.command(
    epilog=examples(
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
        ("lakesync staging rebuild --from-lake --replace", "if a backup was restored, or the store is damaged"),
        ("lakesync staging rebuild --from-lake --shard shard-orders", "only one shard's store"),
    )
)
def rebuild(
    staging: StagingUrl = None,
    data: Data = None,
    *,
    from_lake: Annotated[bool, typer.Option("--from-lake", help="Read the lake's Iceberg tables; required.")],
    replace: Annotated[bool, typer.Option("--replace", help="Move an existing store aside.")] = False,
    shard: Annotated[str | None, typer.Option("--shard", help="Rebuild only this shard's store.")] = None,
    margin_seconds: Annotated[
        float, typer.Option(help="Seconds above the clock at which new arrivals start.", min=0)
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Rebuild the store from the lake, under a new epoch.

    Restores rows, delta ids, the ledger, schemas, rules and connectors. Stop gateways and pipeline first.
    Acknowledged deltas that never reached the lake are lost; clients that still have them may push them again.
    Results of actions are not in the lake. With shards, all stores are rebuilt, or one with --shard.
    """
    from lakesync.cli.local.lake_history import LakeHistory
    from lakesync.engine.rebuild import rebuild as rebuild_stores
    from lakesync.engine.standalone_engine import log_to_stderr
    from lakesync.model.hlc import OffsetClock
    from lakesync.staging.shards import shard_map

    if not from_lake:
        raise typer.BadParameter("--from-lake is required; the lake is the only source")
    config = load_settings(data)
    shards = shard_map(config.shard_config)
    if shard is not None and shards is None:
        raise typer.BadParameter("--shard needs [shard_config] in the settings, which has none; leave out --shard")
    if staging and shards is not None:  # the lake's tables belong to several stores
        raise typer.BadParameter("--staging names one store, but the settings have [shard_config]; leave out --staging")
    log_to_stderr()
    with _progress_bar() as advance, LakeHistory(config) as history:
        rebuilt = rebuild_stores(
            staging or config.staging.url,  # with shards: the default shard's store
            OffsetClock(config.clock_offset_file).now_ms,
            history,
            replace=replace,
            margin_ms=round(margin_seconds * 1000),
            on_progress=advance,
            shards=shards,
            only=shard,
        )
    if as_json:
        output.print_json(rebuilt)
        return
    for each in rebuilt:
        restored = "its schemas and rules" if each.rules else f"{output.count(each.schemas, 'schema')} and no rules"
        restored += f", {output.count(each.connectors, 'connector')}" if each.connectors else ""
        where = f" shard {each.shard}" if shards is not None else ""
        print(
            f"gateway {each.gateway}{where}: {output.count(each.deltas, 'delta')} in "
            f"{output.count(each.pushes, 'push', 'pushes')}, {restored}, epoch {each.epoch}"
        )
    if not rebuilt:
        print("the lake has no gateways; the store is empty")


@erase_app.command(
    epilog=examples(
        ("lakesync erase --gateway shop --client alice", "everything that Alice wrote"),
        ("lakesync erase --gateway shop --table orders --row 4711 --yes", "one row"),
    )
)
def erase(
    gateway: Gateway = None,
    table: Annotated[str | None, typer.Option(help="The row's table.", autocompletion=complete_tables)] = None,
    row: Annotated[str | None, typer.Option(help="The row's id, with --table.")] = None,
    client: Annotated[str | None, typer.Option(help="The client whose data is erased.")] = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Erase a row, or everything that a client wrote, for good.

    Give --table and --row, or --client. The data is erased from staging at once, and from the lake by the pipeline.
    Clients with an erased row receive a DELETE. If a gateway owns the store, the command calls that gateway.
    """
    from lakesync.cli.connection import choose_gateway
    from lakesync.model.validation import importer_of, is_importer

    is_row = table is not None and row is not None and client is None
    is_client = client is not None and table is None and row is None
    if not is_row and not is_client:
        raise typer.BadParameter("it is not clear what to erase; give --table and --row, or --client alone")
    subject = f"row {row!r} of table {table!r}" if is_row else f"everything that client {client!r} wrote"
    config = load_settings(data)
    gateway_id = choose_gateway(config, gateway)
    output.confirm(f"Erase {subject} in gateway {gateway_id!r}? This cannot be undone.", assume_yes=yes)
    with open_store(config) as store:
        if client is not None:
            erasure = store.erase_client(gateway_id, client)
        else:
            erasure = store.erase_row(gateway_id, table or "", row or "")
    if as_json:
        output.print_json(erasure)
        return
    rows, deltas = output.count(erasure.row_count, "row"), output.count(erasure.deltas, "unflushed delta")
    print(f"erased {subject}: {rows}, {deltas}")
    output.note(f"the pipeline will erase it from the lake up to arrival {erasure.arrival} (erasure {erasure.seq})")
    if client is not None and not is_importer(client):
        output.note(f"rows imported for it are another client's: erase them with --client {importer_of(client)}")


@contextmanager
def open_store(config: Config) -> Iterator[PipelineStore]:
    """Yield the staging store of the settings. If a gateway has it open, yield an object that calls that gateway.

    Raises:
        StagingUnavailableError: neither the store nor its gateway can be reached.
        ConfigurationError: there is no store, or a gateway owns it and there is no service token.
    """
    from lakesync.engine import Engine
    from lakesync.engine.standalone_engine import log_to_stderr
    from lakesync.model.hlc import OffsetClock
    from lakesync.staging import configured_store, store_urls
    from lakesync.staging.remote import RemoteStore

    log_to_stderr()
    if config.staging.url.startswith("sqlite:"):
        store_urls.store_status(config.staging.url)  # raises if there is no store; opening would create one
    wall = OffsetClock(config.clock_offset_file).now_ms
    with ExitStack() as closing_store:
        engine = Engine(configured_store(config, wall), wall)
        closing_store.callback(engine.close)  # also if `engine.open` fails: the engine may have connections already
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


def _print_status(store_status: Status) -> None:
    """Print a store's schema versions, and a line for each gateway and shard in it."""
    print(f"{store_status.url}  {output.count(store_status.bytes, 'byte')}")
    for schema in store_status.schemas:
        note = "" if schema.version == schema.newest else f" (this LakeSync has {schema.newest})"
        print(f"{schema.database}: schema version {schema.version}{note}")
    for head in store_status.heads:
        print(
            f"gateway {head.gateway} shard {head.shard}: epoch {head.epoch}, arrival {head.arrival}, "
            f"last sequence {head.last_seq}, flushed {head.flushed_seq}, trimmed {head.trimmed_seq}, "
            f"{output.count(head.deltas, 'unflushed delta')} of {output.count(head.bytes, 'byte')}"
        )


def _urls_by_shard(data: Data, staging: StagingUrl) -> dict[str, str]:
    """Return shard → the URL of its store, of the settings or with `--staging` of one store alone."""
    from lakesync.staging.shards import urls_by_shard

    config = load_settings(data)
    return urls_by_shard(None if staging else config.shard_config, staging or config.staging.url)


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, int], None]]:
    """Show a progress bar on stderr. Yields a function that sets the number of restored deltas of a gateway."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} deltas"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(gateway: str, deltas: int) -> None:
            if gateway not in tasks:
                tasks[gateway] = progress.add_task(gateway, total=None)
            progress.update(tasks[gateway], completed=deltas)

        yield advance
