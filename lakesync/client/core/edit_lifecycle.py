"""The life of an edit: made, pushed, accepted or refused, retried, dropped; and `EditClock`, which stamps edits.

An *edit* is a change of the app that the gateway has not acknowledged, with the delta to push: the columns of one row
that the app wrote. It is `waiting` to be pushed, `sent` in a push without a response, or `refused` by the gateway. A
*known row* is a row as the gateway has it. An edit's stamp is its hybrid logical clock (hlc) with the client id; the
greater stamp wins a merge. The client's core calls these functions. Each returns the changes to commit and stores
nothing itself. `docs/client-core.md` has the state diagram.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from lakesync.client.core.rows import merge_delta, visible_row
from lakesync.client.core.store import Changes, ClientStore, Edit, KnownRow, LocalChange
from lakesync.model.delta import delta_id, extract_delta
from lakesync.model.errors import ClockDriftError, NotFoundError, Rejection, ValidationError
from lakesync.model.hlc import COUNTER_BITS, HLC, MAX_DRIFT_MS, wall_of
from lakesync.model.merge import RowState
from lakesync.model.types import RowKey
from lakesync.wire.json import encode_delta


class EditClock:
    """A hybrid logical clock (wall milliseconds and a counter) that stays above every stamp that the gateway sent.

    Stamps from the gateway are trusted even if they are far ahead, because the gateway checks every push for drift.
    Rows of a named source, which may have any stamps, are not (`Puller`).
    """

    def __init__(self, wall: Callable[[], int], last: int, gateway_hlc: int) -> None:
        """Continue from stored values.

        Args:
            wall: returns this machine's time in milliseconds since 1970.
            last: the highest hlc that an edit was stamped with, or that a page from the gateway had (`Position.hlc`).
            gateway_hlc: the highest hlc that the gateway sent or accepted (`Position.gateway_hlc`).
        """
        self._wall = wall
        self._hlc = HLC(wall, last)
        self.gateway_hlc = gateway_hlc
        """The highest hlc that the gateway sent or accepted."""

    @property
    def last(self) -> int:
        """The highest hlc of any edit or page."""
        return self._hlc.last

    def now(self, at_ms: int | None = None) -> int:
        """Return a new hlc, above all earlier ones.

        Args:
            at_ms: when the change was made, in milliseconds of this machine's clock; None for now.
        """
        if at_ms is not None:
            self._hlc = HLC(self._wall, max(at_ms << COUNTER_BITS, self._hlc.last + 1))
            return self._hlc.last
        return self._hlc.now()

    def observe(self, hlc: int) -> None:
        """Advance past an hlc that the gateway sent or accepted."""
        self.advance(hlc, hlc)

    def advance(self, last: int, gateway_hlc: int) -> None:
        """Advance past the stamps of another connection to the same database.

        Args:
            last: the highest hlc that the other connection issued or observed.
            gateway_hlc: the highest hlc that the gateway sent to it or accepted from it.
        """
        self.gateway_hlc = max(self.gateway_hlc, gateway_hlc)
        if last > self._hlc.last:
            self._hlc = HLC(self._wall, last)

    def highest_accepted(self) -> int:
        """Return the highest hlc that the gateway accepts now, if its clock agrees with this machine's.

        The gateway rejects stamps more than MAX_DRIFT_MS ahead of its clock (CLOCK_DRIFT). Its clock is at least at
        `gateway_hlc`.
        """
        last_ms = max(self._wall(), self.gateway_hlc >> COUNTER_BITS) + MAX_DRIFT_MS
        return ((last_ms + 1) << COUNTER_BITS) - 1  # the last hlc of that millisecond

    def set_back(self, last: int) -> None:
        """Continue from `last`, or from `gateway_hlc` if that is higher.

        Call it after the local clock was ahead. Edits with higher stamps must get new ones.
        """
        self._hlc = HLC(self._wall, max(last, self.gateway_hlc))


def make_edits(changes: Iterable[LocalChange], client_id: str, clock: EditClock, number: int) -> dict[int, Edit]:
    """Return an edit for each change that differs from the row before it.

    Args:
        changes: the written rows, before and after.
        client_id: this client's id.
        clock: stamps the edits.
        number: the first edit's number.

    Returns:
        The edits by number.

    Raises:
        ValidationError: a value is not a JSON value.
    """
    edits: dict[int, Edit] = {}
    for change in changes:
        table, row_id, before, after, made_at_ms = change
        hlc = clock.now(made_at_ms)
        delta = extract_delta(before, after, table=table, row_id=row_id, client_id=client_id, hlc=hlc)
        if delta is not None:
            edits[number] = Edit(number, delta)
            number += 1
    return edits


def next_batch(store: ClientStore, limit: int, byte_limit: int) -> list[Edit]:
    """Return the edits to push: the unchanged batch of a push without a response, else the oldest waiting edits.

    Args:
        store: the store with the edits.
        limit: number of edits, at most.
        byte_limit: bytes of their JSON, at most; a single edit may be larger.

    Returns:
        The edits; empty if none waits. A batch that is repeated ignores both limits, because it must be unchanged.
    """
    sent = store.edits("sent")
    if sent:
        return sent
    batch: list[Edit] = []
    size = 0
    for edit in store.edits("waiting", limit):
        size += len(encode_delta(edit.delta)) + 1
        if batch and size > byte_limit:
            break
        batch.append(edit)
    return batch


def accept(store: ClientStore, edits: Sequence[Edit], generation: int) -> Changes:
    """Merge edits that the gateway accepted into the known rows, and delete the edits. The app's rows do not change.

    Args:
        store: the store with the known rows.
        edits: the accepted edits.
        generation: the number of the latest full pull (all pages from the beginning). Rows that the edits insert get
            it, because rows with a lower number are removed at the end of that pull.

    Returns:
        The changes to commit.
    """
    keys = {edit.delta.key for edit in edits}
    known = store.known(keys)
    for edit in edits:
        row = known.setdefault(edit.delta.key, KnownRow(RowState(), generation))
        if edit.delta.op == "INSERT":
            row.generation = generation
        merge_delta(row.state, edit.delta)
    accepted = {edit.number for edit in edits}
    remaining = _remaining_edits(store, keys, dict.fromkeys(accepted))
    return Changes(
        known={key: row if remaining[key] or row.state.visible else None for key, row in known.items()},
        edits=dict.fromkeys(accepted),
    )


def refuse(edits: Iterable[Edit], rejections: Mapping[str, Rejection]) -> dict[int, Edit | None]:
    """Mark edits as refused, or as waiting if no rejection names them.

    Args:
        edits: the edits of a push.
        rejections: the gateway's rejections by delta id.

    Returns:
        The edits by number.
    """
    result: dict[int, Edit | None] = {}
    for edit in edits:
        rejection = rejections.get(edit.delta.delta_id)
        if rejection is None:
            result[edit.number] = replace(edit, status="waiting")
        else:
            result[edit.number] = replace(edit, status="refused", code=rejection.code, message=rejection.message)
    return result


def retry(store: ClientStore, numbers: Collection[int]) -> Changes:
    """Mark refused edits as waiting, so that they are pushed again. Return the changes to commit.

    Args:
        store: the store with the edits.
        numbers: the edits' numbers.

    Raises:
        NotFoundError: a number does not belong to a refused edit.
    """
    refused = {edit.number: edit for edit in store.edits("refused")}
    _check_numbers(numbers, refused, "refused")
    waiting = {number: replace(refused[number], status="waiting", code="", message="") for number in numbers}
    return Changes(edits=dict(waiting))


def drop(store: ClientStore, numbers: Collection[int]) -> Changes:
    """Delete edits, and restore their rows as if the edits had never been made. Return the changes to commit.

    Args:
        store: the store with the edits.
        numbers: the edits' numbers.

    Raises:
        NotFoundError: a number does not belong to an edit.
        ValidationError: an edit was sent, so the gateway may have it.
    """
    edits = {edit.number: edit for edit in store.edits()}
    _check_numbers(numbers, edits, "in the outbox")
    for number in numbers:
        if edits[number].status == "sent":
            raise ValidationError(
                f"edit {number} was sent and the gateway may have stored it: wait for the response, or change the row "
                "again"
            )
    changes = Changes(edits=dict.fromkeys(numbers))
    refresh_rows(store, changes, {edits[number].delta.key for number in numbers})
    return changes


def restamp_future_edits(store: ClientStore, clock: EditClock) -> Changes:
    """Give new stamps to edits that were made while this machine's clock was ahead. Return the changes to commit.

    These are the edits with stamps above the highest hlc that the gateway accepts now: waiting edits, and edits that
    were refused with CLOCK_DRIFT, which become waiting again. A new stamp is safe, because the gateway has stored none
    of them. While a push with such an edit is in doubt, nothing changes: the gateway may have it, and later edits must
    stay above it.

    Args:
        store: the store with the edits.
        clock: the client's clock; it is turned back, then stamps the edits.
    """
    limit = clock.highest_accepted()
    if clock.last <= limit:
        return Changes()
    edits = store.edits()
    ahead = [edit for edit in edits if edit.delta.hlc > limit]
    if any(edit.status == "sent" for edit in ahead):
        return Changes()
    future = [edit for edit in ahead if edit.status == "waiting" or edit.code == ClockDriftError.code]
    clock.set_back(max((edit.delta.hlc for edit in edits if edit.delta.hlc <= limit), default=0))
    changes = Changes(edits={edit.number: _restamped(edit, clock.now()) for edit in future})
    refresh_rows(store, changes, {edit.delta.key for edit in future})
    return changes


def refused_for_drift(store: ClientStore, gateway_ms: int) -> list[int]:
    """Return the numbers of edits that were refused with CLOCK_DRIFT, and whose stamps are in the past by now.

    Args:
        store: the store with the edits.
        gateway_ms: the gateway's time, in milliseconds since 1970.
    """
    refused = (edit for edit in store.edits("refused") if edit.code == ClockDriftError.code)
    return [edit.number for edit in refused if wall_of(edit.delta.hlc) <= gateway_ms]


def refresh_rows(store: ClientStore, changes: Changes, keys: Collection[RowKey]) -> None:
    """Complete changes of edits: add the app's rows that follow, and delete known rows kept only for their edits.

    Args:
        store: the store with the known rows and the edits.
        changes: the changed edits; rows and known rows are added to it.
        keys: the rows to compute.
    """
    known = store.known(keys)
    remaining = _remaining_edits(store, keys, changes.edits)
    for key in keys:
        row = known.get(key)
        changes.rows[key] = visible_row(row.state if row else None, remaining[key])
        if row and not remaining[key] and not row.state.visible:
            changes.known[key] = None


def _remaining_edits(
    store: ClientStore, keys: Collection[RowKey], changed: Mapping[int, Edit | None]
) -> dict[RowKey, list[Edit]]:
    """Return the edits of these rows as they will be after the changes to edits in `changed`."""
    by_row: dict[RowKey, dict[int, Edit]] = {key: {} for key in keys}
    for key, edits in store.edits_of(keys).items():
        by_row[key] = {edit.number: edit for edit in edits if edit.number not in changed}
    for number, edit in changed.items():
        if edit is not None and edit.delta.key in by_row:
            by_row[edit.delta.key][number] = edit
    return {key: [edits[number] for number in sorted(edits)] for key, edits in by_row.items()}


def _restamped(edit: Edit, hlc: int) -> Edit:
    """Return a waiting edit of the same change with a new stamp and therefore a new delta id."""
    old = edit.delta
    new_id = delta_id(client_id=old.client_id, hlc=hlc, table=old.table, row_id=old.row_id, columns=old.columns)
    return Edit(edit.number, replace(old, hlc=hlc, delta_id=new_id))


def _check_numbers(numbers: Collection[int], edits: Mapping[int, Edit], expected: str) -> None:
    """Raise NotFoundError if a number is not one of these edits'; `expected` describes them for the message."""
    unknown = sorted(set(numbers) - edits.keys())
    if unknown:
        raise NotFoundError(
            f"edit {unknown[0]} is not {expected}: it was accepted or dropped meanwhile, or never made; pending() "
            "lists the edits"
        )
