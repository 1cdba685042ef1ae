"""Whether a connector would work: what its source can be asked without reading it through, one question at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lakesync.connectors.source import Source


class Probe(NamedTuple):
    """One question."""

    what: str
    """`credentials`, `clock`, `permissions`, or the table of which a page is read."""
    ask: Callable[[], str]
    """The answer in words; raises what `lakesync.model.errors` has where it is a bad one."""


def probes_of(source: Source) -> Sequence[Probe]:
    """A source's own probes; of one that has none, the first page of each table."""
    own = getattr(source, "probes", None)
    if own is not None:
        return tuple(own())
    return [Probe(table.name, partial(_first_page, source, table.name)) for table in source.tables]


def clock_told(theirs_ms: float, whose: str, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> str:
    """How two clocks differ, in words."""
    seconds = round((theirs_ms - now_ms()) / 1000)
    if abs(seconds) < 5:
        return f"{whose} clock agrees with this machine's"
    relation = "ahead of" if seconds > 0 else "behind"
    return (
        f"{whose} clock is {abs(seconds)} s {relation} this machine's: polls go by theirs alone, so nothing is missed; "
        "see which one is wrong"
    )


def _first_page(source: Source, table: str) -> str:
    page = next(source.changes(table, None), None)
    return f"{0 if page is None else len(page.rows)} rows on the first page"
