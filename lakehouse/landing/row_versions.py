"""Computes from a row's landed versions what became of it, as `lakesync.testing.landing` defines. Tasks call it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

KNOWN = -1
"""Page and hlc of versions from `known`, which are older than every landed page."""


class Version(NamedTuple):
    """One version of a row, as a page contained it."""

    page: int
    hlc: int
    columns: str
    """JSON."""


class Event(NamedTuple):
    """A change of a row."""

    page: int
    hlc: int
    columns: str | None
    """The row as JSON after it; None: it was deleted."""
    before: str | None
    """The row as JSON before it; None: it did not exist."""


class ClaimKeys:
    """Reads the values of a row in the columns by which pages claim rows."""

    def __init__(self, columns: Sequence[str]) -> None:
        """Prepare the decoder.

        Args:
            columns: the columns.
        """
        self.columns = tuple(columns)
        kind = msgspec.defstruct("Keys", [(column, Any, None) for column in columns])
        self._decode = msgspec.json.Decoder(kind).decode

    def of(self, columns: str) -> list[tuple[str, str]]:
        """Return `(column, value)` for each column of a row's JSON that is not null, with values as text."""
        row = self._decode(columns)
        found = ((column, getattr(row, column)) for column in self.columns)
        return [(column, as_text(value)) for column, value in found if value is not None]


def as_text(value: Any) -> str:
    """Return a value as the text that claims have."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Claims:
    """The claims of pages: a page states that it has all rows with a certain value in a column."""

    def __init__(self) -> None:
        """Create it without claims."""
        self._pages: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, column: str, value: str, page: int, hlc: int) -> None:
        """Add a claim. Of several equal ones of a page the one with the smallest hlc counts.

        Args:
            column: the claimed column.
            value: its value.
            page: the page that claims it.
            hlc: the claim's hlc.
        """
        pages = self._pages.setdefault((column, value), {})
        pages[page] = min(hlc, pages.get(page, hlc))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._pages

    def last(self, key: tuple[str, str]) -> int:
        """Return the newest page with a claim; a page before all others if no page has a claim."""
        pages = self._pages.get(key)
        return max(pages) if pages else KNOWN - 1

    def after(self, key: tuple[str, str], page: int) -> tuple[int, int] | None:
        """Return the next later page with the same claim, and the claim's hlc; None if no later page has it.

        Args:
            key: column and value.
            page: the page before.
        """
        pages = self._pages.get(key)
        if not pages:
            return None
        if len(pages) == 1:
            ((found, hlc),) = pages.items()
            return (found, hlc) if found > page else None
        order = sorted(pages)
        at = bisect_right(order, page)
        return (order[at], pages[order[at]]) if at < len(order) else None


def replay_versions(
    versions: Sequence[Version],
    gone: Iterable[tuple[int, int]],
    keys: Callable[[str], Iterable[tuple[str, str]]],
    claims: Claims,
) -> Iterator[Event]:
    """Yield the changes of one row in order, also those without an effect.

    Args:
        versions: the row's versions, in order of page and hlc.
        gone: pages and hlcs at which the source reports the row as deleted. A page that also has the row is ignored.
        keys: returns the claim keys of a version's JSON.
        claims: the claims of pages. A claim deletes the row unless its page has the row.
    """
    brought = {version.page for version in versions}
    events: list[tuple[int, int, str | None]] = list(versions)
    events += [(page, hlc, None) for page, hlc in gone if page not in brought]
    for place, version in enumerate(versions):
        following = versions[place + 1].page if place + 1 < len(versions) else None
        for key in keys(version.columns):
            by = claims.after(key, version.page)
            if by is not None and (following is None or by[0] < following):
                events.append((*by, None))
    events.sort(key=lambda each: each[:2])
    before = None
    for page, hlc, columns in events:
        yield Event(page, hlc, columns, before)
        before = columns
