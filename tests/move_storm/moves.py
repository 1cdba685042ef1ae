"""The transfers that are killed: the work of a process, and the conditions for source and target afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from lakesync.adapters import DatabaseAdapter, LifecycleAdapter, as_database, composite, migrate_adapter, open_adapter
from lakesync.adapters.arrow import columns_as_map
from lakesync.adapters.arrow_access import read_pages
from lakesync.adapters.base import MarkStore
from lakesync.adapters.deltas import DeltaQuery
from lakesync.adapters.transfer.flow_pages import RowFilter
from lakesync.adapters.transfer.flows import run_flow
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history, read_follower_progress
from lakesync.adapters.transfer.loads import (
    begin_load,
    finish_load,
    is_announced,
    load_to_resume,
    part_name,
    withdraw_load,
)
from lakesync.adapters.transfer.migration import (
    Division,
    HlcRange,
    MigrationInMark,
    MigrationScope,
    begin_division,
    end_division,
)
from lakesync.adapters.transfer.progress import ProgressInMark
from lakesync.model.schema import parse_schema

TABLE = parse_schema({"table": "notes", "columns": [{"name": "size", "type": "number"}]})
SCOPE = MigrationScope(tables=("notes",))
Deltas = Counter[tuple[object, ...]]
"""Each whole delta, and how often it is stored."""


class Verdict(NamedTuple):
    """The result of a transfer that was killed and restarted."""

    point: str
    """The crash point."""
    copied: int
    """The deltas that the last run copied."""
    lost: int
    doubled: int
    touched: int
    """The number of changed deltas in a source that is only read."""


def migration(source: str, target: str, page: int) -> int:
    """Copy everything; return the number of deltas that this run copied."""
    with _opened(source, target) as (there, here):
        assert isinstance(here, MarkStore)
        return migrate_adapter(there, here, SCOPE, progress=MigrationInMark(here, "migrations/storm"), page=page).copied


def tiering(source: str, target: str, page: int) -> int:
    """Move everything; return the number of deltas that this run moved."""
    composite.PAGE_DELTAS = page  # type: ignore[attr-defined]  # patched
    with _opened(source, target) as (hot, cold):
        return LifecycleAdapter(hot, cold, 0).migrate_to_tier().deltas


def flow(source: str, target: str, page: int) -> int:
    """Copy the new deltas of one gateway; return the number of deltas that this run copied."""
    row_filter = RowFilter(tables=("notes",), gateways=("g",))
    with _opened(source, target) as (there, here):
        return sum(part.deltas for part in run_flow(there, here, "flows/storm", row_filter, [TABLE], page=page))


def migration_in_ranges(source: str, target: str, page: int) -> int:
    """Copy everything in ranges, several at a time; return the number of deltas that this run copied."""

    def copy(number: int, part: HlcRange) -> int:
        scope = replace(SCOPE, since=part.since, until=part.until)
        with _opened(source, target) as (there, here):
            assert isinstance(here, MarkStore)
            progress = MigrationInMark(here, f"migrations/storm#{number}", division.id)
            return migrate_adapter(there, here, scope, progress=progress, page=page).copied

    with _opened(source, target) as (there, here):
        assert isinstance(here, MarkStore)
        kept = ProgressInMark(here, "migrations/storm ranges", Division)
        division = begin_division(there, SCOPE, kept, 3, 2 * page)
        copied = sum(_at_once(copy, enumerate(division.ranges())))
        end_division(division, kept)
    return copied


def tiering_in_ranges(source: str, target: str, page: int) -> int:
    """Move everything in ranges, several at a time; return the number of deltas that this run moved."""
    composite.PAGE_DELTAS = page  # type: ignore[attr-defined]  # patched

    def move(part: HlcRange) -> int:
        with _opened(source, target) as (hot, cold):
            return LifecycleAdapter(hot, cold, 0).move_range(*part).deltas

    with _opened(source, target) as (hot, _):
        assert isinstance(hot, MarkStore)
        kept = ProgressInMark(hot, "tiers/storm", Division)
        division = begin_division(hot, SCOPE, kept, 3, 2 * page)
        moved = sum(_at_once(move, ((part,) for part in division.ranges())))
        end_division(division, kept)
    return moved


def load(source: str, target: str, page: int) -> int:
    """Apply the source's deltas by the parts of a load, several at a time; return the number of deltas of this run."""
    name, choice = "destinations/storm", DeltaSelection()
    history = _history(source, page)
    until = {"g/main": max(batch.column("arrival")[-1].as_py() for batch in history)}

    def take(number: int) -> int:
        assert begun is not None
        part = begun.part(number)
        mine = [batch.filter(part.mask(pa.Table.from_batches([batch])).combine_chunks()) for batch in history]
        with closing(as_database(open_adapter(target))) as here:
            own = replace(choice, part=part)
            since = {"g/main": -1}
            taken = follow_history(
                here, part_name(name, number), own, mine, [TABLE], until=until, since=since, min_deltas=page
            )
            return sum(each.deltas for each in taken)

    with closing(as_database(open_adapter(target))) as here:
        at = read_follower_progress(here, name, choice)
        begun = load_to_resume(here, at, [TABLE])
        if begun is None and at.deltas:
            withdraw_load(here, name)  # killed after the load had ended
            return 0
        begun = begun or begin_load(here, name, choice, until, 3, [TABLE])
        taken = sum(_at_once(take, ((number,) for number in range(3))))
        finish_load(here, name, choice)
        assert not is_announced(here, name)
    return taken


MOVES: dict[str, Callable[[str, str, int], int]] = {
    "migration": migration,
    "tiering": tiering,
    "flow": flow,
    "migration_in_ranges": migration_in_ranges,
    "tiering_in_ranges": tiering_in_ranges,
    "load": load,
}
POINTS = {
    "migration": ("migrate.after_copy", "migrate.after_page"),
    "tiering": ("tier.after_copy", "tier.after_delete"),
    "flow": ("flow.after_page",),
    "migration_in_ranges": (
        "ranges.begun",
        "migrate.after_copy",
        "migrate.after_end",
        "ranges.before_end",
        "migrate.after_page",
    ),
    "tiering_in_ranges": ("ranges.begun", "tier.after_copy", "ranges.before_end", "tier.after_delete"),
    "load": ("load.announced", "load.begun", "load.before_finish", "load.after_finish", "follow.after_chunk"),
}
"""The crash points of a process for any target; the last one of each is after a complete page."""
_SQL = {
    "flow": ("sql.before_mark", "sql.after_follow"),
    "load": ("sql.before_rows", "sql.before_mark", "sql.after_follow"),
    "": ("sql.after_commit",),
}
_MARKED = {"flow": ("objects.before_mark",), "load": ("objects.before_mark",)}
POINTS_AT = {
    "sqlite": _SQL,
    "postgresql": _SQL,
    "mysql": _SQL,
    "file": {**_MARKED, "": ("local.before_place", "local.after_place")},
    "s3": {**_MARKED, "": ()},
}
"""The crash points within a target, by scheme: for followers, and for writers of batches."""


def points(move: str, target: str) -> Iterator[str]:
    """The crash points of a process that writes to a target."""
    inner = POINTS_AT[target.partition(":")[0]]
    yield from (*POINTS[move], *inner.get(move, inner[""]))


def held(uri: str) -> Deltas:
    """The content of an adapter."""
    found: Deltas = Counter()
    with closing(as_database(open_adapter(uri))) as adapter:
        for part in read_pages(adapter, DeltaQuery(tables=("notes",))):
            found.update(tuple(map(str, row.values())) for row in columns_as_map(part.deltas).to_pylist())
    return found


def judged(move: str, point: str, source: str, target: str, before: Deltas, copied: int) -> Verdict:
    """The verdict on a completed transfer."""
    there, here = held(source), held(target)
    if move.startswith("tiering"):
        lost, doubled = before - here, (there & here) + Counter({each: n - 1 for each, n in here.items() if n > 1})
        return Verdict(point, copied, lost.total(), doubled.total(), 0)
    changed = (there - before) + (before - there)
    return Verdict(point, copied, (before - here).total(), sum(n - 1 for n in here.values()), changed.total())


def _at_once(work: Callable[..., int], parts: Iterable[tuple[Any, ...]]) -> list[int]:
    """Run several parts concurrently, as several tasks do."""
    with ThreadPoolExecutor(2) as threads:
        return [each.result() for each in [threads.submit(work, *part) for part in parts]]


def _history(source: str, page: int) -> list[pa.RecordBatch]:
    """The source's deltas in the form of the lake's history: a batch for each page."""
    with closing(as_database(open_adapter(source))) as there:
        pages = read_pages(there, DeltaQuery(tables=("notes",), limit=page))
        found = [columns_as_map(each.deltas) for each in pages]
    batches = []
    for number, table in enumerate(each for each in found if len(each)):
        whole = table.append_column("shard", pa.repeat("main", len(table)))
        whole = whole.append_column("batch_id", pa.repeat(f"g.main.1.{number}", len(table)))
        batches += whole.combine_chunks().to_batches()
    return batches


@contextmanager
def _opened(source: str, target: str) -> Iterator[tuple[DatabaseAdapter, DatabaseAdapter]]:
    with closing(as_database(open_adapter(source))) as there, closing(as_database(open_adapter(target))) as here:
        yield there, here
