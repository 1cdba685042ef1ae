"""`lakesync staging rebuild --from-lake`, with a bar that moves."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lakesync.cli.staging_history import LakeHistory
from lakesync.config import Config
from lakesync.engine.rebuilding import Rebuilt, rebuild
from lakesync.model.clock import WallClock
from lakesync.staging.shards import ShardMap


def run(
    config: Config,
    url: str,
    *,
    replace: bool,
    margin_ms: int,
    as_json: bool,
    shards: ShardMap | None = None,
    only: str | None = None,
) -> list[Rebuilt]:
    """Make the store at `url`, and those of its shards, again and tell what was brought back."""
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
        return done
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
    return done
