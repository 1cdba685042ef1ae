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
    """`credentials`, `clock`, `permissions`, or the table of which a page is read."""
    run: Callable[[], str]
    """Returns the result as a sentence, or raises an error of `lakesync.model.errors`."""


def probes_of(source: Source) -> Sequence[Probe]:
    """Return the probes of the source's method `probes`; if it has none, a probe that reads a page of each table."""
    own = getattr(source, "probes", None)
    if own is not None:
        return tuple(own())
    return [Probe(table.name, partial(_first_page, source, table.name)) for table in source.tables]


def describe_clock_skew(theirs_ms: float, whose: str, now_ms: Callable[[], float] = lambda: time.time() * 1000) -> str:
    """Describe the difference between a source's clock and this machine's.

    Args:
        theirs_ms: the source's time, in milliseconds since 1970.
        whose: the clock's owner in the possessive, such as "the site's".
        now_ms: returns this machine's time, in milliseconds since 1970.
    """
    seconds = round((theirs_ms - now_ms()) / 1000)
    if abs(seconds) < 5:
        return f"{whose} clock agrees with this machine's"
    relation = "ahead of" if seconds > 0 else "behind"
    return (
        f"{whose} clock is {abs(seconds)} s {relation} this machine's. Polls use {whose} clock only, so no change is "
        "missed. Check which clock is wrong."
    )


def _first_page(source: Source, table: str) -> str:
    page = next(source.changes(table, None), None)
    return f"{0 if page is None else len(page.rows)} rows on the first page"
