"""Probes: quick checks of a source for `lakesync connectors test`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from lakesync.connectors.source import Source


class Probe(NamedTuple):
    """One check."""

    name: str
    """`credentials`, `clock`, `permissions`, or the table that a page is read of."""
    run: Callable[[], str]
    """Returns the result in words, or raises an error of `lakesync.model.errors`."""


def probes_of(source: Source) -> Sequence[Probe]:
    """Return the source's own probes; by default, reading the first page of each table."""
    own = getattr(source, "probes", None)
    if own is not None:
        return tuple(own())
    return [Probe(table.name, partial(_first_page, source, table.name)) for table in source.tables]


def describe_clock_skew(theirs_ms: float, whose: str, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> str:
    """Describe the difference between two clocks.

    Args:
        theirs_ms: the other clock, milliseconds since 1970.
        whose: the other clock's owner, in the possessive.
        now_ms: this machine's clock.
    """
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
