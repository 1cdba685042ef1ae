"""The moves that are killed: what a process does, and what must be true of its two places afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

from lakesync.adapters import DatabaseAdapter, LifecycleAdapter, as_database, lifecycle, migrate_adapter, open_adapter
from lakesync.adapters.arrow import mapped
from lakesync.adapters.base import DeltaQuery, Marked
from lakesync.adapters.flowing import Sieve, flow_to
from lakesync.adapters.migrate import ProgressMark, Scope
from lakesync.adapters.several import read_arrow, walk
from lakesync.schema import parse_schema

TABLE = parse_schema({"table": "notes", "columns": [{"name": "size", "type": "number"}]})
SCOPE = Scope(tables=("notes",))
Deltas = Counter[tuple[object, ...]]
"""Each delta, whole, and how often it is held."""


class Verdict(NamedTuple):
    """What became of a move that was killed and begun again."""

    point: str
    """Where it was killed."""
    copied: int
    """By the run that ended it."""
    lost: int
    doubled: int
    touched: int
    """Deltas of the source that are not what they were, where it is only read."""


def migration(source: str, target: str, page: int) -> int:
    """Copy everything; how many deltas this run copied."""
    with _opened(source, target) as (there, here):
        assert isinstance(here, Marked)
        return migrate_adapter(there, here, SCOPE, progress=ProgressMark(here, "migrations/storm"), page=page).copied


def tiering(source: str, target: str, page: int) -> int:
    """Move everything; how many deltas this run moved."""
    lifecycle.PAGE = page
    with _opened(source, target) as (hot, cold):
        return LifecycleAdapter(hot, cold, 0).migrate_to_tier().deltas


def flow(source: str, target: str, page: int) -> int:
    """Carry over what is new, of one gateway; how many deltas this run carried."""
    sieve = Sieve(tables=("notes",), gateways=("g",))
    with _opened(source, target) as (there, here):
        return sum(part.deltas for part in flow_to(there, here, "flows/storm", sieve, [TABLE], page=page))


MOVES: dict[str, Callable[[str, str, int], int]] = {"migration": migration, "tiering": tiering, "flow": flow}
POINTS = {
    "migration": ("migrate.after_copy", "migrate.after_page"),
    "tiering": ("tier.after_copy", "tier.after_delete"),
    "flow": ("flow.after_page",),
}
"""Where a process dies, whatever the target; the last of each is where a page has ended."""
_SQL = {"flow": ("sql.before_mark", "sql.after_follow"), "": ("sql.after_commit",)}
POINTS_AT = {
    "sqlite": _SQL,
    "postgresql": _SQL,
    "mysql": _SQL,
    "file": {"flow": ("objects.before_mark",), "": ("local.before_place", "local.after_place")},
    "s3": {"flow": ("objects.before_mark",), "": ()},
}
"""Within a target, by its scheme: of flows, and of what writes batches."""


def points(move: str, target: str) -> Iterator[str]:
    """Where a process that moves to a target may die."""
    inner = POINTS_AT[target.partition(":")[0]]
    yield from (*POINTS[move], *inner.get(move, inner[""]))


def held(uri: str) -> Deltas:
    """What a place holds."""
    found: Deltas = Counter()
    with closing(as_database(open_adapter(uri))) as adapter:
        for part in walk(partial(read_arrow, adapter), DeltaQuery(tables=("notes",))):
            found.update(tuple(map(str, row.values())) for row in mapped(part.deltas).to_pylist())
    return found


def judged(move: str, point: str, source: str, target: str, before: Deltas, copied: int) -> Verdict:
    """What is to be said of a move that ended."""
    there, here = held(source), held(target)
    if move == "tiering":
        lost, doubled = before - here, (there & here) + Counter({each: n - 1 for each, n in here.items() if n > 1})
        return Verdict(point, copied, lost.total(), doubled.total(), 0)
    changed = (there - before) + (before - there)
    return Verdict(point, copied, (before - here).total(), sum(n - 1 for n in here.values()), changed.total())


@contextmanager
def _opened(source: str, target: str) -> Iterator[tuple[DatabaseAdapter, DatabaseAdapter]]:
    with closing(as_database(open_adapter(source))) as there, closing(as_database(open_adapter(target))) as here:
        yield there, here
