"""Walks over deltas that lie in pieces, objects or files, each known by the least and the greatest value that it holds.

Pieces are read in the order of their least value until what was found lies below all that is left, so a page costs what
it returns and the pieces that overlap it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from lakesync.adapters.arrow import arrow_schema
from lakesync.adapters.base import ArrowPage, DeltaQuery, Order, Position

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = {
    "arrival": ("arrival", "hlc", "client_id", "delta_id", "gateway"),
    "hlc": ("hlc", "client_id", "delta_id", "gateway"),
}

_NUMBERS = ("arrival", "hlc")

P = TypeVar("P")


class Piece(NamedTuple, Generic[P]):
    """A piece by its name, and what it spans."""

    name: P
    low: int
    high: int

    def reaches(self, query: DeltaQuery) -> bool:
        """Whether it may hold something of what is asked for."""
        after = query.after.value if query.after is not None else query.since
        return self.high >= max(after, query.since) and (query.until is None or self.low <= query.until)


def page_of(pieces: Iterable[Piece[P]], read: Callable[[P], pa.Table], query: DeltaQuery) -> ArrowPage:
    """A page of what a query asks for.

    Args:
        pieces: those that reach into it, spanning values of its order.
        read: a piece's deltas.
        query: what is asked for.
    """
    import pyarrow as pa

    left = sorted(pieces, key=lambda piece: piece.low)
    found: list[pa.Table] = [arrow_schema().empty_table()]
    count = 0
    for place, piece in enumerate(left):
        some = chosen(read(piece.name), query)
        found.append(some)
        count += len(some)
        if count > query.limit and place + 1 < len(left):
            together = in_order(pa.concat_tables(found), query.order)
            found, count = [together], len(together)
            if count > query.limit and together.column(query.order)[query.limit].as_py() < left[place + 1].low:
                break
    whole = in_order(pa.concat_tables(found), query.order) if len(found) > 1 else found[0]
    page = whole.slice(0, query.limit)
    return ArrowPage(page, last_position(page, query.order) if len(whole) > query.limit else None)


def split_points(pieces: Iterable[tuple[Piece[P], int]], query: DeltaQuery, size: int) -> list[int]:
    """The values that cut what a query finds into ranges of about `size` deltas.

    Args:
        pieces: those that reach into the query, with the number of their deltas, which are taken to lie evenly.
        query: what is to be divided.
        size: deltas a range.
    """
    steps: list[tuple[int, float]] = []
    for piece, count in pieces:
        low, high = max(piece.low, query.since + 1), piece.high if query.until is None else min(piece.high, query.until)
        reached = count * (high - low + 1) / (piece.high - piece.low + 1)
        parts = max(1, round(reached / size))
        steps += ((low + (high - low) * number // parts, reached / parts) for number in range(parts))
    points, held = list[int](), 0.0
    for low, some in sorted(steps):
        if held and held + some > size and low - 1 > (points[-1] if points else query.since):
            points.append(low - 1)
            held = 0
        held += some
    return points


def chosen(deltas: pa.Table, query: DeltaQuery) -> pa.Table:
    """Those of the deltas that a query asks for, whatever its limit."""
    import pyarrow as pa
    import pyarrow.compute as pc

    value = deltas.column(query.order)
    keep = [pc.greater(value, query.since)] if query.since >= 0 else []
    if query.until is not None:
        keep.append(pc.less_equal(value, query.until))
    if query.gateway is not None:
        keep.append(pc.equal(deltas.column("gateway"), query.gateway))
    for name, wanted in (("table_name", query.tables), ("row_id", query.rows)):
        if wanted:
            keep.append(pc.is_in(deltas.column(name), pa.array(wanted, pa.string())))
    if query.after is not None:
        keep.append(_behind(deltas, query.order, query.after))
    for mask in keep[1:]:
        keep[0] = pc.and_(keep[0], mask)
    return deltas.filter(keep[0]) if keep else deltas


def in_order(deltas: pa.Table, order: Order) -> pa.Table:
    """The deltas by their place, each once; of one that came twice, as it came first."""
    import pyarrow.compute as pc

    names = _PLACE[order]
    if len(deltas) < 2:
        return deltas
    if not _rises(deltas, [name for name in names if name in _NUMBERS]):
        deltas = deltas.take(
            pc.sort_indices(deltas, sort_keys=[(name, "ascending") for name in dict.fromkeys((*names, "arrival"))])
        )
        same = pc.equal(deltas.column(names[0]).slice(1), deltas.column(names[0]).slice(0, len(deltas) - 1))
        for name in names[1:]:
            if not pc.any(same).as_py():
                return deltas
            column = deltas.column(name)
            same = pc.and_(same, pc.equal(column.slice(1), column.slice(0, len(deltas) - 1)))
        if pc.any(same).as_py():
            return deltas.filter([True, *pc.invert(same).to_pylist()])
    return deltas


def last_position(deltas: pa.Table, order: Order) -> Position:
    """The place just after the last of some deltas, of which there is at least one."""
    last: dict[str, Any] = {name: deltas.column(name)[-1].as_py() for name in _PLACE["arrival"]}
    return Position(last[order], last["hlc"], last["client_id"], last["delta_id"], last["gateway"])


def _rises(deltas: pa.Table, numbers: Sequence[str]) -> bool:
    """Whether each delta is above the one before, by columns of numbers alone."""
    import pyarrow.compute as pc

    above: Any = None
    for name in reversed(numbers):
        here, before = deltas.column(name).slice(1), deltas.column(name).slice(0, len(deltas) - 1)
        greater = pc.greater(here, before)
        above = greater if above is None else pc.or_(greater, pc.and_(pc.equal(here, before), above))
    return bool(pc.all(above).as_py())


def _behind(deltas: pa.Table, order: Order, after: Position) -> Any:
    """Which deltas stand behind a place, as a mask."""
    import pyarrow.compute as pc

    place = {
        "arrival": after.value,
        "hlc": after.hlc,
        "client_id": after.client_id,
        "delta_id": after.delta_id,
        "gateway": after.gateway,
    }
    behind: Any = None
    for name in reversed(_PLACE[order]):
        column = deltas.column(name)
        above = pc.greater(column, place[name])
        behind = above if behind is None else pc.or_(above, pc.and_(pc.equal(column, place[name]), behind))
    return behind
