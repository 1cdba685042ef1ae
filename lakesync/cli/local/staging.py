"""`lakesync staging`: the store that gateways commit to, looked at and upgraded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings

if TYPE_CHECKING:
    from lakesync.config import Config
    from lakesync.staging.shards import ShardMap
    from lakesync.staging.versions import Status

app = command_app(
    "Look at the staging store, upgrade it, bring it back from the lake.",
    examples(
        ("lakesync staging status", "what is there, in words"),
        ("lakesync staging migrate", "after an upgrade of LakeSync"),
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
    ),
)

Url = Annotated[
    str | None,
    typer.Option("--staging", help="sqlite:///ABSOLUTE/FOLDER or postgresql://…", show_default=False),
]


@app.command(
    epilog=examples(
        ("lakesync staging status", "the store of lakesync.toml"),
        ("lakesync staging status --staging postgresql://user:password@host/db --json", "another, for a program"),
    )
)
def status(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Show schema versions, bytes, and each gateway's head; the store may be in use.

    Where tables have stores of their own, each of them.
    """
    from lakesync.staging import versions

    found = {shard: versions.status(url) for shard, url in _urls(staging, data).items()}
    if as_json:
        print(msgspec.json.encode(found.get("", found)).decode())
        return
    for each in found.values():
        _show(each)


@app.command(
    epilog=examples(
        ("lakesync staging migrate", "the store of lakesync.toml"),
        ("lakesync staging migrate --data /var/lib/lakesync", "the one in that folder"),
    )
)
def migrate(staging: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """Upgrade the store's schema in place; what it holds stays. A gateway does the same when it starts.

    On SQLite the gateway must be stopped. A store that a newer LakeSync wrote is refused and left as it is. Where
    tables have stores of their own, all of them are upgraded, or none where any is refused.
    """
    from lakesync.staging import versions

    done = versions.upgrade_all(_urls(staging, data))
    if as_json:
        print(msgspec.json.encode(done.get("", done)).decode())
        return
    for shard, upgrades in done.items():
        for each in upgrades:
            change = f"{each.before} → {each.after}" if each.before != each.after else f"{each.after}, nothing to do"
            print(f"{f'shard {shard}, ' if shard else ''}{each.database}: schema version {change}")


@app.command(
    epilog=examples(
        ("lakesync staging rebuild --from-lake", "after the store was lost"),
        ("lakesync staging rebuild --from-lake --replace", "where a backup was put back, or it is damaged"),
        ("lakesync staging rebuild --from-lake --shard shard-orders", "one shard's store alone"),
    )
)
def rebuild(
    staging: Url = None,
    data: Data = None,
    *,
    from_lake: Annotated[bool, typer.Option("--from-lake", help="Read the Iceberg tables; the one source there is.")],
    replace: Annotated[bool, typer.Option("--replace", help="Set a store that is there aside.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", help="The one shard whose store is made again.", show_default=False)
    ] = None,
    margin_seconds: Annotated[float, typer.Option(help="How far above the clock arrivals go on.", min=0)] = 60.0,
    as_json: Json = False,
) -> None:
    """Make the store again from the lake: rows, ids, the ledger, schemas and rules, under a new epoch.

    Stop gateways and pipeline first. What was acknowledged and never reached the lake is lost with the old store;
    clients that still have such deltas may push them again. Connectors and actions are not in the lake. Where tables
    have stores of their own, all of them are made again, or with --shard one of them.
    """
    if not from_lake:
        raise typer.BadParameter("write --from-lake: the lake is the one source there is")
    shards = _shards_of(staging, data)
    if shard is not None and shards is None:
        raise typer.BadParameter("--shard names one of the stores of shard_config, and there is none")
    _rebuild(
        settings(data),
        next(iter(_urls(staging, data).values())),
        shards=shards,
        only=shard,
        replace=replace,
        margin_ms=round(margin_seconds * 1000),
        as_json=as_json,
    )


def _show(found: Status) -> None:
    print(f"{found.url}  {found.bytes:,} bytes")
    for schema in found.schemas:
        note = "" if schema.version == schema.newest else f" (this LakeSync knows {schema.newest})"
        print(f"{schema.database}: schema version {schema.version}{note}")
    for head in found.heads:
        print(
            f"gateway {head.gateway} shard {head.shard}: epoch {head.epoch}, arrival {head.arrival}, "
            f"log rows {head.last_seq}, in the lake {head.flushed_seq}, trimmed {head.trimmed_seq}, "
            f"{head.deltas} deltas of {head.bytes:,} bytes wait"
        )


def _urls(staging: str | None, data: Path | None) -> dict[str, str]:
    """Shard → URL of its store, the default shard first; one store under the name "" where tables are not sharded.

    Args:
        staging: the `--staging` option, which names one store alone.
        data: the `--data` option.

    Raises:
        ConfigurationError: the shards cannot be used.
    """
    from lakesync.staging.shards import shard_urls

    if staging:
        return {"": staging}
    shards = _shards_of(staging, data)
    url = settings(data).staging.url
    return {"": url} if shards is None else shard_urls(shards, url)


def _shards_of(staging: str | None, data: Path | None) -> ShardMap | None:
    """The shards that are configured; None where there are none, or one store is named.

    Raises:
        ConfigurationError: they cannot be used.
    """
    from lakesync.staging.shards import shard_map

    return None if staging else shard_map(settings(data).shard_config)


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
    """Make the store at `url`, and those of its shards, again and tell what was brought back."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from lakesync.cli.local.lake_history import LakeHistory
    from lakesync.engine.rebuilding import rebuild
    from lakesync.model.clock import WallClock

    wall = WallClock(config.clock_offset_file).now_ms
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} deltas"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        tasks: dict[str, int] = {}

        def advance(gateway: str, deltas: int) -> None:
            if gateway not in tasks:
                tasks[gateway] = progress.add_task(gateway, total=None)
            progress.update(tasks[gateway], completed=deltas)  # type: ignore[arg-type]

        done = rebuild(
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
        print(msgspec.json.encode(done).decode())
        return
    for each in done:
        told = "its schemas and rules" if each.rules else f"{each.schemas} schemas and no rules"
        told += f", {each.connectors} connectors" if each.connectors else ""
        where = f" shard {each.shard}" if shards is not None else ""
        print(
            f"gateway {each.gateway}{where}: {each.deltas:,} deltas in {each.pushes:,} pushes, {told}, "
            f"epoch {each.epoch}"
        )
    if not done:
        print("the lake has no gateway: the store is empty")
