"""`lakesync staging`: inspects, upgrades and rebuilds the staging store, the database to which gateways commit.

A shard is a set of tables with a store of its own. Without shards there is one store for all tables, whose shard is
named "" here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, load_settings

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.migrations import Status
    from lakesync.staging.shards import ShardMap

app = command_app(
    "Inspect, upgrade and rebuild the staging store.",
    examples(
        ("lakesync staging status", "schema versions, size, and progress of each gateway"),
        ("lakesync staging migrate", "after an upgrade of LakeSync"),
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
    ),
)

Url = Annotated[
    str | None,
    typer.Option(
        "--staging",
        help="Store: sqlite:///ABSOLUTE/FOLDER or postgresql://…; default: [staging] url.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        ("lakesync staging status", "the store of lakesync.toml"),
        ("lakesync staging status --staging postgresql://user:password@host/db --json", "another store, as JSON"),
    )
)
def status(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Show schema versions, size and each gateway's progress.

    The store may be in use. With shards, all stores are shown.
    """
    from lakesync.staging import versions

    statuses = {shard: versions.status(url) for shard, url in _urls(staging, data).items()}
    if as_json:
        print(msgspec.json.encode(statuses.get("", statuses)).decode())
        return
    for store_status in statuses.values():
        _print_status(store_status)


@app.command(
    epilog=examples(
        ("lakesync staging migrate", "the store of lakesync.toml"),
        ("lakesync staging migrate --data /var/lib/lakesync", "the store in that folder"),
    )
)
def migrate(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Upgrade the store's schema in place, keeping its data.

    A gateway does the same when it starts. On SQLite, stop the gateway first. A store that a newer LakeSync wrote is
    rejected and not changed. With shards, all stores are upgraded, or none if any is rejected.
    """
    from lakesync.staging import versions

    upgrades_by_shard = versions.upgrade_all(_urls(staging, data))
    if as_json:
        print(msgspec.json.encode(upgrades_by_shard.get("", upgrades_by_shard)).decode())
        return
    for shard, upgrades in upgrades_by_shard.items():
        for each in upgrades:
            change = (
                f"{each.before} → {each.after}" if each.before != each.after else f"{each.after}, no upgrade needed"
            )
            print(f"{f'shard {shard}, ' if shard else ''}{each.database}: schema version {change}")


@app.command(
    epilog=examples(
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
        ("lakesync staging rebuild --from-lake --replace", "if a backup was restored, or the store is damaged"),
        ("lakesync staging rebuild --from-lake --shard shard-orders", "only one shard's store"),
    )
)
def rebuild(
    staging: Url = None,
    data: Data = None,
    *,
    from_lake: Annotated[bool, typer.Option("--from-lake", help="Read the lake's Iceberg tables; required.")],
    replace: Annotated[bool, typer.Option("--replace", help="Move an existing store aside.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", help="Rebuild only this shard's store.", show_default=False)
    ] = None,
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
    if not from_lake:
        raise typer.BadParameter("--from-lake is required; the lake is the only source")
    shards = _shards_of(None, data)
    if shard is not None and shards is None:
        raise typer.BadParameter("--shard needs [shard_config] in the settings, which has none; leave out --shard")
    if staging and shards is not None:  # the lake's tables belong to several stores
        raise typer.BadParameter("--staging names one store, but the settings have [shard_config]; leave out --staging")
    _rebuild(
        load_settings(data),
        next(iter(_urls(staging, data).values())),
        shards=shards,
        only=shard,
        replace=replace,
        margin_ms=round(margin_seconds * 1000),
        as_json=as_json,
    )


def _print_status(store_status: Status) -> None:
    """Print a store's schema versions, and a line for each gateway and shard in it."""
    print(f"{store_status.url}  {store_status.bytes:,} bytes")
    for schema in store_status.schemas:
        note = "" if schema.version == schema.newest else f" (this LakeSync has {schema.newest})"
        print(f"{schema.database}: schema version {schema.version}{note}")
    for head in store_status.heads:
        print(
            f"gateway {head.gateway} shard {head.shard}: epoch {head.epoch}, arrival {head.arrival}, "
            f"last sequence {head.last_seq}, flushed {head.flushed_seq}, trimmed {head.trimmed_seq}, "
            f"{head.deltas} unflushed deltas of {head.bytes:,} bytes"
        )


def _urls(staging: str | None, data: Path | None) -> dict[str, str]:
    """Return shard → the URL of its store, the default shard first; without shards, the only shard is "".

    Args:
        staging: the URL of one store (`--staging`); None for the stores of the settings.
        data: the data folder (`--data`); None for that of the settings.

    Raises:
        ConfigurationError: the settings of the shards are invalid.
    """
    from lakesync.staging.shards import shard_urls

    if staging:
        return {"": staging}
    shards = _shards_of(staging, data)
    url = load_settings(data).staging.url
    return {"": url} if shards is None else shard_urls(shards, url)


def _shards_of(staging: str | None, data: Path | None) -> ShardMap | None:
    """Return the configured shards; None if none is configured, or if `staging` names a store.

    Raises:
        ConfigurationError: the settings of the shards are invalid.
    """
    from lakesync.staging.shards import shard_map

    return None if staging else shard_map(load_settings(data).shard_config)


def _rebuild(
    config: Config,
    url: str,
    *,
    replace: bool,
    margin_ms: int,
    as_json: bool,
    shards: ShardMap | None = None,
    only: str | None = None,
) -> None:
    """Rebuild stores from the lake, with a progress bar, and print what was restored.

    Args:
        config: the settings, which name the lake.
        url: the URL of the store, or of the default shard's.
        replace: whether to move an existing store aside.
        margin_ms: milliseconds above the clock at which new arrivals start.
        as_json: whether to print JSON.
        shards: the configured shards; None without shards.
        only: rebuild only the store of this shard; None for all.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from lakesync.cli.local.lake_history import LakeHistory
    from lakesync.engine.rebuilding import rebuild
    from lakesync.model.hlc import WallClock

    wall = WallClock(config.clock_offset_file).now_ms
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} deltas"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks: dict[str, int] = {}

        def advance(gateway: str, deltas: int) -> None:
            if gateway not in tasks:
                tasks[gateway] = progress.add_task(gateway, total=None)
            progress.update(tasks[gateway], completed=deltas)  # type: ignore[arg-type]

        rebuilt = rebuild(
            url,
            wall,
            LakeHistory(config),
            replace=replace,
            margin_ms=margin_ms,
            on_progress=advance,
            shards=shards,
            only=only,
        )
    if as_json:
        print(msgspec.json.encode(rebuilt).decode())
        return
    for each in rebuilt:
        restored = "its schemas and rules" if each.rules else f"{each.schemas} schemas and no rules"
        restored += f", {each.connectors} connectors" if each.connectors else ""
        where = f" shard {each.shard}" if shards is not None else ""
        print(
            f"gateway {each.gateway}{where}: {each.deltas:,} deltas in {each.pushes:,} pushes, {restored}, "
            f"epoch {each.epoch}"
        )
    if not rebuilt:
        print("the lake has no gateways; the store is empty")
