"""What a poll's pages change against what was known: the law that the pipeline's Spark job follows as well."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from lakesync.connectors.source import Page
from lakesync.model.delta import jcs
from lakesync.model.types import Op

Known = dict[str, Mapping[str, Any]]
"""The rows of one table as they were last landed: columns by row id."""


class Change(NamedTuple):
    """One row's change: all columns of a new row, those that differ of a known one, none of a deleted one."""

    op: Op
    row_id: str
    columns: Mapping[str, Any]


def diff(known: Known, page: Page, identity: str | None = None) -> list[Change]:
    """What a page changes; `known` is brought up to it.

    A row that the page brings as it is known gives nothing, so that to read it again costs nothing behind.

    Args:
        identity: the column by which a row takes the place of another, as in `Table`.
    """
    changes: list[Change] = []
    for row in page.rows:
        changes += _row(known, row.row_id, row.columns)
    brought = {row.row_id for row in page.rows}
    for row_id in sorted(_replaced(known, page, identity, brought) | (set(page.deleted) & known.keys()) - brought):
        del known[row_id]
        changes.append(Change("DELETE", row_id, {}))
    return changes


def _row(known: Known, row_id: str, columns: Mapping[str, Any]) -> Iterable[Change]:
    before = known.get(row_id)
    known[row_id] = columns
    if before is None:
        yield Change("INSERT", row_id, columns)
        return
    if differing := changed(before, columns):
        yield Change("UPDATE", row_id, differing)


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that differ between two versions of a row, as the later one has them; null where it lacks them."""
    return {name: after.get(name) for name in {**before, **after} if _differ(before.get(name), after.get(name))}


def _replaced(known: Known, page: Page, identity: str | None, brought: set[str]) -> set[str]:
    whole = set(page.whole)
    if identity is not None:
        whole |= {(identity, row.columns[identity]) for row in page.rows}
    columns = {column for column, _ in whole}
    return {
        row_id
        for row_id, row in known.items()
        if row_id not in brought and any((column, row.get(column)) in whole for column in columns)
    }


def _differ(before: Any, after: Any) -> bool:
    if isinstance(before, str) and isinstance(after, str):
        return before != after
    return jcs(before) != jcs(after)
