"""The law of `lakesync.testing.landing` over what landed, a row's versions at a time, in a task of Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

KNOWN = -1
"""The page, and the stamp, of what was known before."""


class Version(NamedTuple):
    """A row as a page brought it."""

    page: int
    hlc: int
    columns: str
    """JSON."""


class Event(NamedTuple):
    """What became of a row."""

    page: int
    hlc: int
    columns: str | None
    """None where it is gone."""
    before: str | None
    """What it was until then; None where it was not."""


class Keys:
    """What a row has in the columns by which pages claim rows."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        kind = msgspec.defstruct("Keys", [(column, Any, None) for column in columns])
        self._decode = msgspec.json.Decoder(kind).decode

    def of(self, columns: str) -> list[tuple[str, str]]:
        """`(column, value)` of a row's JSON, values as text; without those that are null."""
        row = self._decode(columns)
        found = ((column, getattr(row, column)) for column in self.columns)
        return [(column, as_text(value)) for column, value in found if value is not None]


def as_text(value: Any) -> str:
    """A value as claims have it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Claims:
    """Which pages say, of the rows with a value in a column, that those which they bring are all."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, column: str, value: str, page: int, hlc: int) -> None:
        """Add a claim; of several by one page, that with the least stamp counts.

        Args:
            column: the claimed column.
            value: its value.
            page: that claims it.
            hlc: the stamp.
        """
        pages = self._pages.setdefault((column, value), {})
        pages[page] = min(hlc, pages.get(page, hlc))

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._pages

    def last(self, key: tuple[str, str]) -> int:
        """The newest page that claims this; below all pages where none does."""
        pages = self._pages.get(key)
        return max(pages) if pages else KNOWN - 1

    def after(self, key: tuple[str, str], page: int) -> tuple[int, int] | None:
        """Return the nearest later page with the same claim, and its stamp; None where there is none.

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


def story(
    versions: Sequence[Version],
    gone: Iterable[tuple[int, int]],
    keys: Callable[[str], Iterable[tuple[str, str]]],
    claims: Claims,
) -> Iterator[Event]:
    """What became of one row, in order; what changes nothing is in it.

    Args:
        versions: in order of page and stamp.
        gone: pages, and their stamps, that say that it is gone; one that brings it as well does not count.
        keys: of a version's JSON.
        claims: of pages; one that brings the row does not end it.
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
