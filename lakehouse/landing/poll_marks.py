"""Staging's marks of polls: when the last one began, and how many have failed since. Polls write, sensors read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lakehouse.mark_names import failed_polls_mark, poll_mark
from lakesync.analysis.marks import FailedPolls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.staging.store import PipelineStore


def record_poll(store: PipelineStore, gateway: str, name: str, begun_ms: int, tables: int, failed: int) -> None:
    """Write a connector's marks after a poll.

    The mark of its last poll stays if no table succeeded, so that the sensor retries after a growing pause. If one did,
    the next poll is due at the connector's interval, because a table that fails delays no other.

    Args:
        store: the staging store.
        gateway: the connector's gateway.
        name: the connector's name.
        begun_ms: when the poll began, in milliseconds of server wall time.
        tables: number of the connector's tables.
        failed: number of those that were not read or not pushed completely.
    """
    mark, known = failed_polls_mark(gateway, name), failed_polls(store.marks(), gateway, name)
    if failed:
        since_ms = known.since_ms if known.count else begun_ms
        store.put_mark(mark, msgspec.json.encode(FailedPolls(known.count + 1, since_ms)).decode())
    elif known.count:
        store.put_mark(mark, msgspec.json.encode(FailedPolls(0, begun_ms)).decode())
    if failed < tables or not tables:
        store.put_mark(poll_mark(gateway, name), str(begun_ms))


def failed_polls(marks: Mapping[str, str], gateway: str, name: str) -> FailedPolls:
    """Return how many polls of a connector have failed in a row; 0 if the newest one succeeded.

    Args:
        marks: staging's marks.
        gateway: the connector's gateway.
        name: the connector's name.
    """
    text = marks.get(failed_polls_mark(gateway, name))
    return msgspec.json.decode(text, type=FailedPolls) if text is not None else FailedPolls(0, 0)


def last_poll_ms(marks: Mapping[str, str], gateway: str, name: str) -> int:
    """Return when a connector's last poll began, in milliseconds of server wall time; 0 before the first.

    Args:
        marks: staging's marks.
        gateway: the connector's gateway.
        name: the connector's name.
    """
    return int(marks.get(poll_mark(gateway, name), 0))
