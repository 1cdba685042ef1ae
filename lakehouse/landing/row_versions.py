"""Computes a row's changes from its landed versions, deletes and claims. The Spark tasks of polls call it.

`lakesync.testing.landing` has the same law in its simplest form, and a property test holds both equal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

NO_PAGE = -1
"""A page before every landed page; also page and hlc of the versions in the table `known`, which are older."""


class Version(NamedTuple):
    """One version of a row, as a page contained it."""

    page: int
    hlc: int
    columns: str
    """The row as JSON."""


class Event(NamedTuple):
    """A change of a row."""

    page: int
    hlc: int
    columns: str | None
    """The row as JSON after it; None: it was deleted."""
    before: str | None
    """The row as JSON before it; None: it did not exist."""


class ClaimKeys:
    """Reads from a row's JSON its values in the claimed columns, those of which pages claim to have all rows."""

    def __init__(self, columns: Sequence[str]) -> None:
        """Prepare the decoder.

        Args:
            columns: names of the claimed columns.
        """
        self.columns = tuple(columns)
        kind = msgspec.defstruct("Keys", [(column, Any, None) for column in columns])
        self._decode = msgspec.json.Decoder(kind).decode

    def of(self, columns: str) -> list[tuple[str, str]]:
        """Return `(column, value)` for each claimed column that is not null in a row's JSON, with the value as text."""
        row = self._decode(columns)
        found = ((column, getattr(row, column)) for column in self.columns)
        return [(column, as_text(value)) for column, value in found if value is not None]


def as_text(value: Any) -> str:
    """Return a JSON value as text, in which claims store and compare values."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class Claims:
    """The claims of pages: a page states that it has all rows with a certain value in a column."""

    def __init__(self) -> None:
        """Create it without claims."""
        self._pages: dict[tuple[str, str], dict[int, int]] = {}

    def add(self, column: str, value: str, page: int, hlc: int) -> None:
        """Add a claim. If a page makes the same claim twice, the smaller hlc counts.

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
        """Return the newest page that makes a claim; a page before all others if no page does."""
        pages = self._pages.get(key)
        return max(pages) if pages else NO_PAGE - 1

    def after(self, key: tuple[str, str], page: int) -> tuple[int, int] | None:
        """Return the first page after another that makes a claim, and the claim's hlc; None if no later page does.

        Args:
            key: column and value of the claim.
            page: the other page.
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
    """Yield the changes of one row in order of page and hlc, also those without an effect.

    Args:
        versions: the row's versions, in order of page and hlc.
        gone: `(page, hlc)` at which the source reports the row as deleted; ignored if the page also has the row.
        keys: returns the claim keys of a version's JSON.
        claims: the claims of all pages. A claim deletes the row if it fits the row's version and its page lacks the
            row.
    """
    pages_with_row = {version.page for version in versions}
    events: list[tuple[int, int, str | None]] = list(versions)
    events += [(page, hlc, None) for page, hlc in gone if page not in pages_with_row]
    for number, version in enumerate(versions):
        next_page = versions[number + 1].page if number + 1 < len(versions) else None
        for key in keys(version.columns):
            claim = claims.after(key, version.page)
            if claim is not None and (next_page is None or claim[0] < next_page):
                events.append((*claim, None))
    events.sort(key=lambda each: each[:2])
    before = None
    for page, hlc, columns in events:
        yield Event(page, hlc, columns, before)
        before = columns
