"""Loads: a follower's large backlog, divided among parts that several tasks take at the same time.

A part is a follower of its own, with a mark of its own beside its rows, so a load that is killed goes on part by part.
When every part has ended, the follower's mark takes over what they took, in one step. Until then deltas of one gateway
do not come in order of arrival; `Settled` keeps readers that rely on that order away.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lakesync.adapters.base import (
    ArrowPage,
    DatabaseAdapter,
    DeltaBatch,
    DeltaPage,
    DeltaQuery,
    Held,
    Mark,
    Marked,
    Materialisable,
    Position,
)
from lakesync.adapters.following import Choice, Load, Standing, columns_shown, marked, standing
from lakesync.adapters.objects import ObjectDeltas
from lakesync.adapters.progress import progress_in
from lakesync.adapters.several import Several, read_arrow
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import AdapterError, IntegrityError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lakesync.model.merge import RowState
    from lakesync.model.schema import TableSchema

LOADS = "loads"
"""The mark that names the followers whose loads have begun and not ended."""
_TRIES = 5


class Loading(msgspec.Struct, frozen=True):
    """What the mark `LOADS` says."""

    begun: int = 0
    """Loads that ever began at this adapter."""
    names: tuple[str, ...] = ()
    """Followers whose load has not ended."""


def begin_load(
    adapter: DatabaseAdapter,
    name: str,
    choice: Choice,
    until: Mapping[str, int],
    parts: int,
    schemas: Sequence[TableSchema] = (),
) -> Load:
    """Divide what a follower lacks.

    Args:
        adapter: what follows.
        name: of the follower.
        choice: what it wants.
        until: `GATEWAY/SHARD` → the last arrival that belongs to the load, of each stream of which it lacks something.
        parts: how many tasks take it, at most `BUCKETS`.
        schemas: of the tables of rows that the parts write.

    Raises:
        IntegrityError: another run moved the mark meanwhile.
        AdapterError: the adapter cannot be reached.
    """
    marks = marked(adapter)
    text = marks.mark(name)
    at = standing(adapter, name, choice)
    shown = columns_shown(adapter, schemas)
    load = Load(secrets.token_hex(8), parts, dict(until), isinstance(adapter, ObjectDeltas), shown)
    if isinstance(adapter, Materialisable):
        for schema in schemas:
            with suppress(SchemaError, AdapterError):  # what cannot be made is set aside by the parts
                adapter.ensure_schema(schema)
    _announce(marks, name)
    crash_point("load.announced")
    begun = replace(at, load=load, shown=at.shown if at.deltas else shown)
    marks.move_mark(Mark(name, text, _text(begun)))
    crash_point("load.begun")
    return load


def load_to_resume(adapter: DatabaseAdapter, at: Standing, schemas: Sequence[TableSchema] = ()) -> Load | None:
    """Return the load that a follower has begun; None if there is none, or if its tables of rows have changed since.

    A load that is not resumed is replaced by the next one, which takes everything again and changes nothing that is
    there.
    """
    load = at.load
    if load is None or load.shown != columns_shown(adapter, schemas):
        return None
    return load


def part_name(name: str, number: int) -> str:
    """The name of the mark of a part."""
    return f"{name}#{number}"


def finish_load(adapter: DatabaseAdapter, name: str, choice: Choice) -> Standing:
    """Move the follower's mark to where its load's parts are, now that all have ended.

    Raises:
        IntegrityError: a part has not ended, or another run moved the mark meanwhile.
        AdapterError: the adapter cannot be reached; a repeat is safe.
    """
    marks = marked(adapter)
    text = marks.mark(name)
    at = standing(adapter, name, choice)
    load = at.load
    if load is None:
        raise IntegrityError(f"the load of {name!r} has ended already: another run has moved its mark")
    deltas, id_sum = at.deltas, at.id_sum
    for number in range(load.parts):
        part = standing(adapter, part_name(name, number), replace(choice, part=load.part(number)))
        if any(part.streams.get(stream, -1) < last for stream, last in load.until.items()):
            raise IntegrityError(f"part {number} of the load of {name!r} has not ended: run the destination again")
        deltas, id_sum = deltas + part.deltas, (id_sum + part.id_sum) % 2**64
    crash_point("load.before_fold")
    ended = replace(at, streams={**at.streams, **load.until}, deltas=deltas, id_sum=id_sum, load=None)
    marks.move_mark(Mark(name, text, _text(ended)))
    crash_point("load.after_fold")
    withdraw(adapter, name)
    return ended


def is_announced(adapter: DatabaseAdapter, name: str) -> bool:
    """Whether readers are kept away for a follower's load."""
    return name in _loading(marked(adapter).mark(LOADS)).names


def withdraw(adapter: DatabaseAdapter, name: str) -> None:
    """Let readers in again; the follower has to be as far as its load was to come.

    Raises:
        AdapterError: the adapter cannot be reached; a repeat is safe.
    """
    _change(marked(adapter), lambda now: replace(now, names=tuple(each for each in now.names if each != name)))


class Settled:
    """A `DatabaseAdapter` for readers that go on from where they were, in order of arrival.

    While a load is under way, and for a page during which one began, it has nothing more to give: a page then might
    lie beyond deltas that come later.
    """

    def __init__(self, adapter: DatabaseAdapter) -> None:
        """Args: adapter: to be read."""
        self._adapter = adapter

    def query_arrow(self, query: DeltaQuery) -> ArrowPage:
        """A page; an empty last one where a load makes it unsafe."""
        before = self._loads(query)
        page = read_arrow(self._adapter, query)
        return page if self._is_safe(query, before) else ArrowPage(page.deltas.slice(0, 0), None)

    def query_deltas_since(self, query: DeltaQuery) -> DeltaPage:
        """A page; an empty last one where a load makes it unsafe."""
        before = self._loads(query)
        page = self._adapter.query_deltas_since(query)
        return page if self._is_safe(query, before) else DeltaPage((), None)

    def insert_deltas(self, batch: DeltaBatch) -> Held:
        """As the adapter."""
        return self._adapter.insert_deltas(batch)

    def get_latest_state(self, gateway: str | None, table: str, row_ids: Collection[str]) -> dict[str, RowState]:
        """As the adapter."""
        return self._adapter.get_latest_state(gateway, table, row_ids)

    def newest_position(self) -> Position | None:
        """As the adapter."""
        return self._adapter.newest_position()

    def close(self) -> None:
        """As the adapter."""
        self._adapter.close()

    def _loads(self, query: DeltaQuery) -> list[Loading]:
        """The loads that count for a query: none for one of single rows, which goes on from nowhere."""
        return [] if query.order != "arrival" or query.rows else list(_loads_at(self._adapter))

    def _is_safe(self, query: DeltaQuery, before: Sequence[Loading]) -> bool:
        """Whether no load was under way while a page was read."""
        return not any(each.names for each in before) and self._loads(query) == before


def _loads_at(adapter: DatabaseAdapter) -> Iterator[Loading]:
    """What each adapter of a place says of loads."""
    if isinstance(adapter, Several):
        for each in adapter.adapters:
            yield from _loads_at(each)
    elif isinstance(adapter, Marked):
        yield _loading(adapter.mark(LOADS))


def _announce(marks: Marked, name: str) -> None:
    _change(marks, lambda now: Loading(now.begun + 1, tuple(sorted({*now.names, name}))))


def _change(marks: Marked, change: Callable[[Loading], Loading]) -> None:
    """Change what the mark says; another follower of the adapter may do so at the same time."""
    for attempt in range(_TRIES):
        text = marks.mark(LOADS)
        wanted = change(_loading(text))
        if wanted == _loading(text):
            return
        try:
            marks.move_mark(Mark(LOADS, text, _text(wanted)))
        except (IntegrityError, AdapterError):
            if attempt == _TRIES - 1:
                raise
        else:
            return


def _loading(text: str | None) -> Loading:
    return progress_in(text, Loading, LOADS) or Loading()


def _text(value: msgspec.Struct) -> str:
    return msgspec.json.encode(value).decode()
