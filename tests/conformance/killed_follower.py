"""Followers of a generated history, whole or by the parts of a load; also in processes that a test kills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from lakesync.adapters import DatabaseAdapter
from lakesync.adapters.transfer.follower import (
    AppliedChunk,
    DeltaSelection,
    FollowerProgress,
    Load,
    follow_history,
    read_follower_progress,
)
from lakesync.adapters.transfer.loads import begin_load, finish_load, load_to_resume, part_name
from lakesync.model.types import RowDelta
from tests.conformance import adapter_places
from tests.conformance.history_batches import history, pushes
from tests.conformance.test_adapter_tables import NOTES

Pushes = Sequence[tuple[str, int, list[RowDelta]]]


def follow(kind: str, folder: Path, servers: Mapping[str, str], count: int) -> None:
    """Follow a number of pushes to a destination; the servers are at the given addresses."""
    adapter_places.SERVERS.update(servers)
    adapter = adapter_places.DATABASES[kind](folder)
    list(follow_history(adapter, "leaf", DeltaSelection(), history(pushes(count)), [NOTES], min_deltas=5))


def load(kind: str, folder: Path, servers: Mapping[str, str], count: int, parts: int = 3) -> None:
    """Load a number of pushes, part after part."""
    adapter_places.SERVERS.update(servers)
    take_load(adapter_places.DATABASES[kind](folder), pushes(count), parts)


def take_part(kind: str, folder: Path, servers: Mapping[str, str], count: int, number: int) -> None:
    """Process one part of a load in progress."""
    adapter_places.SERVERS.update(servers)
    adapter = adapter_places.DATABASES[kind](folder)
    begun = read_follower_progress(adapter, "leaf", DeltaSelection()).load
    assert begun is not None
    part_of_load(adapter, begun, pushes(count), number)


def take_load(adapter: DatabaseAdapter, made: Pushes, parts: int = 3) -> FollowerProgress:
    """Start a load, or resume the one in progress, and complete it."""
    at = read_follower_progress(adapter, "leaf", DeltaSelection())
    begun = load_to_resume(adapter, at, [NOTES])
    if begun is None:
        until = last_arrivals(made)
        begun = begin_load(adapter, "leaf", DeltaSelection(), until, parts, [NOTES])
    for number in range(begun.parts):
        part_of_load(adapter, begun, made, number, at.streams)
    return finish_load(adapter, "leaf", DeltaSelection())


def part_of_load(
    adapter: DatabaseAdapter, begun: Load, made: Pushes, number: int, since: Mapping[str, int] | None = None
) -> list[AppliedChunk]:
    """Process one part, above the arrivals that the follower had processed before the load."""
    part = begun.part(number)
    wanted = [batch.filter(part.mask(pa.Table.from_batches([batch])).combine_chunks()) for batch in history(made)]
    start = {stream: (since or {}).get(stream, -1) for stream in begun.until}
    name, choice = part_name("leaf", number), DeltaSelection(part=part)
    return list(follow_history(adapter, name, choice, wanted, [NOTES], until=begun.until, min_deltas=5, since=start))


def last_arrivals(made: Pushes) -> dict[str, int]:
    """The last arrival of each stream."""
    found: dict[str, int] = {}
    for gateway, arrival, _ in made:
        found[f"{gateway}/main"] = max(arrival, found.get(f"{gateway}/main", -1))
    return found
