"""The user's edits on their way: made, sent, accepted, set aside, tried again, dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from lakesync.client.core.clock import EditClock
from lakesync.client.core.records import Changes, Edit, KnownRow, LocalChange
from lakesync.client.core.rows import fold, seen
from lakesync.client.core.store import ClientStore
from lakesync.model.delta import delta_id, extract_delta
from lakesync.model.errors import ClockDriftError, NotFoundError, Rejection, ValidationError
from lakesync.model.merge import RowState
from lakesync.model.types import RowKey
from lakesync.wire.json import encode_delta


def make(changes: Iterable[LocalChange], client_id: str, clock: EditClock, number: int) -> dict[int, Edit]:
    """An edit for each change that is one, numbered from `number` on.

    Raises:
        ValidationError: a value is not a JSON value.
    """
    edits: dict[int, Edit] = {}
    for change in changes:
        table, row_id, before, after, at = change
        delta = extract_delta(before, after, table=table, row_id=row_id, client_id=client_id, hlc=clock.now(at))
        if delta is not None:
            edits[number] = Edit(number, delta)
            number += 1
    return edits


def batch(store: ClientStore, most: int, most_bytes: int) -> list[Edit]:
    """What to push next: a batch whose outcome is unknown just as it was, else the oldest waiting edits.

    Args:
        most_bytes: of their JSON; a single edit may be longer.
    """
    sent = store.edits("sent")
    if sent:
        return sent
    taken: list[Edit] = []
    size = 0
    for edit in store.edits("waiting", most):
        size += len(encode_delta(edit.delta)) + 1
        if taken and size > most_bytes:
            break
        taken.append(edit)
    return taken


def accept(store: ClientStore, edits: Sequence[Edit], generation: int) -> Changes:
    """The gateway has these edits: they move into the known rows, and the app's rows stay as they are."""
    keys = {edit.delta.key for edit in edits}
    known = store.known(keys)
    for edit in edits:
        row = known.setdefault(edit.delta.key, KnownRow(RowState(), generation))
        if edit.delta.op == "INSERT":
            row.generation = generation
        fold(row.state, edit.delta)
    gone = {edit.number for edit in edits}
    left = _remaining(store, keys, dict.fromkeys(gone))
    return Changes(
        known={key: row if left[key] or row.state.visible else None for key, row in known.items()},
        edits=dict.fromkeys(gone),
    )


def set_aside(edits: Iterable[Edit], reasons: Mapping[str, Rejection]) -> dict[int, Edit | None]:
    """Edits by number: refused where there is a reason for their delta's id, otherwise waiting."""
    result: dict[int, Edit | None] = {}
    for edit in edits:
        why = reasons.get(edit.delta.delta_id)
        if why is None:
            result[edit.number] = replace(edit, status="waiting")
        else:
            result[edit.number] = replace(edit, status="refused", code=why.code, message=why.message)
    return result


def retry(store: ClientStore, numbers: Collection[int]) -> Changes:
    """Refused edits wait again.

    Raises:
        NotFoundError: a number is no refused edit's.
    """
    refused = {edit.number: edit for edit in store.edits("refused")}
    _check(numbers, refused, "refused")
    waiting = {n: replace(refused[n], status="waiting", code="", message="") for n in numbers}
    return Changes(edits=dict(waiting))


def drop(store: ClientStore, numbers: Collection[int]) -> Changes:
    """Edits are given up, and their rows are as if they had never been made.

    Raises:
        NotFoundError: a number is no edit's.
        ValidationError: the gateway may have an edit already.
    """
    edits = {edit.number: edit for edit in store.edits()}
    _check(numbers, edits, "kept")
    for number in numbers:
        if edits[number].status == "sent":
            raise ValidationError(
                f"edit {number} was sent and the gateway may have it: wait for its answer, or change the row again"
            )
    changes = Changes(edits=dict.fromkeys(numbers))
    repaint(store, changes, {edits[number].delta.key for number in numbers})
    return changes


def mend(store: ClientStore, clock: EditClock) -> Changes:
    """Give new stamps to edits from a time when this machine's clock was ahead; none of them is known anywhere.

    They are those above what the gateway would take now, if this machine's clock is right now: waiting ones, and ones
    that were refused for it, which wait again.
    """
    limit = clock.limit()
    if clock.last <= limit:
        return Changes()
    ahead, last = [], 0
    for edit in store.edits():
        if edit.delta.hlc > limit and (edit.status == "waiting" or edit.code == ClockDriftError.code):
            ahead.append(edit)
        elif edit.delta.hlc <= limit:
            last = max(last, edit.delta.hlc)
    clock.turn_back(last)
    changes = Changes(edits={edit.number: _stamped(edit, clock.now()) for edit in ahead})
    repaint(store, changes, {edit.delta.key for edit in ahead})
    return changes


def repaint(store: ClientStore, changes: Changes, keys: Collection[RowKey]) -> None:
    """Add the app's rows as they are with the changed edits, and forget what only measured edits that are gone."""
    known = store.known(keys)
    left = _remaining(store, keys, changes.edits)
    for key in keys:
        row = known.get(key)
        changes.rows[key] = seen(row.state if row else None, left[key])
        if row and not left[key] and not row.state.visible:
            changes.known[key] = None


def _remaining(
    store: ClientStore, keys: Collection[RowKey], changed: Mapping[int, Edit | None]
) -> dict[RowKey, list[Edit]]:
    """The rows' edits, once these changes are made."""
    by_row: dict[RowKey, dict[int, Edit]] = {key: {} for key in keys}
    for key, edits in store.edits_of(keys).items():
        by_row[key] = {edit.number: edit for edit in edits if edit.number not in changed}
    for number, edit in changed.items():
        if edit is not None and edit.delta.key in by_row:
            by_row[edit.delta.key][number] = edit
    return {key: [edits[number] for number in sorted(edits)] for key, edits in by_row.items()}


def _stamped(edit: Edit, hlc: int) -> Edit:
    old = edit.delta
    identity = delta_id(client_id=old.client_id, hlc=hlc, table=old.table, row_id=old.row_id, columns=old.columns)
    return Edit(edit.number, replace(old, hlc=hlc, delta_id=identity))


def _check(numbers: Collection[int], edits: Mapping[int, Edit], what: str) -> None:
    unknown = sorted(set(numbers) - edits.keys())
    if unknown:
        raise NotFoundError(f"edit {unknown[0]} is not {what}: it was accepted or dropped meanwhile, or never made")
