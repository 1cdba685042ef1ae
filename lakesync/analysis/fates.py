"""What became of every delta of a row: the merge played again in order of arrival, each loss with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw

from lakesync.analysis.moments import shown
from lakesync.model.merge import RowState
from lakesync.model.types import RowDelta, Stamp

Fate = Literal["live", "replaced", "lost", "deleted", "repeated"]
"""`live`: it is the column's value. `replaced`: it was, until a later write. `lost`: it never was. `deleted`: a DELETE
took it, before or after. `repeated`: the same delta was there already."""


class CellFate(msgspec.Struct, frozen=True):
    """One column of a delta."""

    column: str
    value: Raw
    fate: Fate
    why: str
    """Empty where it is live."""
    by: str | None = None
    """The delta that it lost to."""


class DeltaFate(msgspec.Struct, frozen=True):
    """One delta of a row."""

    gateway: str
    arrival: int
    arrived: str
    """UTC."""
    flushed: bool
    op: str
    client_id: str
    hlc: int
    written: str
    """The hlc's wall time, UTC: by the client's clock."""
    delta_id: str
    columns: tuple[CellFate, ...]
    note: str = ""
    """What a delta without columns did."""


class Arrived(msgspec.Struct, frozen=True):
    """A delta and where it stands."""

    gateway: str
    arrival: int
    flushed: bool
    delta: RowDelta


def fates(history: Sequence[Arrived]) -> list[DeltaFate]:
    """The fate of each delta of one row in one gateway, in the order of arrival that they are given in."""
    state = RowState()
    verdicts: list[dict[str, tuple[Fate, str, str | None]]] = [{} for _ in history]
    notes = ["" for _ in history]
    holders: dict[str, int] = {}
    killer: RowDelta | None = None
    for place, arrived in enumerate(history):
        delta = arrived.delta
        stamp: Stamp = (delta.hlc, delta.client_id)
        owners = {column: history[held].delta for column, held in holders.items()}
        outcome = state.merge(delta)
        if delta.op == "DELETE":
            notes[place] = _of_delete(
                delta, killer, changed=outcome.changed, hides=outcome.was_visible and not outcome.visible
            )
            if outcome.changed:
                killer = delta
                gone = holders.keys() - state.values().keys()
                for column in gone:
                    verdicts[holders.pop(column)][column] = ("deleted", f"deleted by {_who(delta)}", delta.delta_id)
            continue
        if not delta.columns:
            notes[place] = "says nothing" if delta.op == "INSERT" else "erased: what it said is gone"
        for column in outcome.won:
            if column in holders:
                why = f"replaced by {_who(delta)}"
                verdicts[holders[column]][column] = ("replaced", why, delta.delta_id)
            holders[column] = place
        for column in outcome.lost:
            if killer is not None and stamp <= (killer.hlc, killer.client_id):
                why = f"stamped no later than the DELETE of {_who(killer)}"
                verdicts[place][column] = ("deleted", why, killer.delta_id)
            else:
                verdicts[place][column] = _against(delta, owners[column])
    for column, place in holders.items():
        verdicts[place][column] = ("live", "", None)
    return [_told(arrived, verdicts[place], notes[place]) for place, arrived in enumerate(history)]


def _against(delta: RowDelta, owner: RowDelta) -> tuple[Fate, str, str]:
    if delta.hlc == owner.hlc and delta.client_id == owner.client_id:
        why = f"{_who(owner)} has the same stamp, and the greater value wins"
    elif delta.hlc == owner.hlc:
        why = f"{_who(owner)} wrote at the same hlc, and the greater client id wins"
    else:
        why = f"{_who(owner)} wrote later, though it arrived before"
    return "lost", why, owner.delta_id


def _of_delete(delta: RowDelta, killer: RowDelta | None, *, changed: bool, hides: bool) -> str:
    if not changed and killer is not None:
        same = killer.delta_id == delta.delta_id
        return "repeated" if same else f"nothing more to delete: {_who(killer)} deleted later"
    return "deletes the row" if hides else "deletes what is stamped before it; what was there is newer, or was gone"


def _told(arrived: Arrived, verdicts: dict[str, tuple[Fate, str, str | None]], note: str) -> DeltaFate:
    delta = arrived.delta
    repeated: tuple[Fate, str, str | None] = ("repeated", "the same delta had arrived before", None)
    cells = [CellFate(cell.column, cell.value, *verdicts.get(cell.column, repeated)) for cell in delta.columns]
    return DeltaFate(
        gateway=arrived.gateway,
        arrival=arrived.arrival,
        arrived=shown(arrived.arrival),
        flushed=arrived.flushed,
        op=delta.op,
        client_id=delta.client_id,
        hlc=delta.hlc,
        written=shown(delta.hlc),
        delta_id=delta.delta_id,
        columns=tuple(cells) if delta.op != "DELETE" else (),
        note=note,
    )


def _who(delta: RowDelta) -> str:
    return f"{delta.client_id} at {shown(delta.hlc)}"
