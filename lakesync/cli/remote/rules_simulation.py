"""Sync rules tried on rows, as some users: on a gateway's rows, or on those of a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.options import claims_of, read_text
from lakesync.rules.evaluation import matches
from lakesync.rules.model import SyncRules, parse_rules

if TYPE_CHECKING:
    from lakesync.cli.connection import Remote
    from lakesync.model.types import Claims

_PAGE = 5000
_CLIENTS = 100


class Viewer(NamedTuple):
    """A user, as rules see one."""

    name: str
    claims: Claims


class Row(NamedTuple):
    """A visible row."""

    table: str
    row_id: str
    values: dict[str, Any]


def viewers(given: Sequence[str] | None) -> list[Viewer]:
    """Those that `--as` names.

    Raises:
        typer.BadParameter: claims are of no known form, or lack `sub`.
    """
    found = []
    for text in given or ():
        claims = claims_of(text) or {}
        if not isinstance(claims.get("sub"), str):
            raise typer.BadParameter(f"--as {text!r} has no sub: a client's id is part of its token")
        found.append(Viewer(text, claims))
    return found


class Trial:
    """Rows, and the rules in force, from a gateway that is asked when it is needed."""

    def __init__(
        self,
        url: str | None,
        gateway: str | None,
        token_file: Path | None,
        data: Path | None,
        rows: Path | None,
        tables: list[str] | None,
    ) -> None:
        self._where = (url, gateway, token_file, data)
        self._file = rows
        self._tables = tables

    @cached_property
    def remote(self) -> Remote:
        """The gateway."""
        from lakesync.cli.connection import connect

        return connect(*self._where)

    def in_force(self) -> SyncRules:
        """The gateway's rules; without any, those by which everyone sees everything."""
        told = self.remote.get("/admin/sync-rules/{gateway}")["rules"]
        return parse_rules(told) if told is not None else SyncRules(1, ())

    def clients(self) -> list[Viewer]:
        """Those that the gateway saw, with the claims that it remembers of them."""
        seen = self.remote.get("/admin/metrics/{gateway}", clients=_CLIENTS)["clients"]
        found = []
        for client in seen:
            who = client["clientId"]
            told = self.remote.get("/admin/explain/{gateway}", clientId=who, table="none", rowId="none")
            found.append(Viewer(who, told["client"]["claims"]))
        return found

    def seen(self, rules: SyncRules, whom: Sequence[Viewer], *, listed: bool) -> Iterator[dict[str, Any]]:
        """For each user and table: how many rows there are, and how many of them the rules show."""
        total: dict[str, int] = defaultdict(int)
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in self._rows((rules,)):
            total[row.table] += 1
            for viewer in whom:
                if matches(rules, row.table, row.values, viewer.claims):
                    ids[viewer.name, row.table].append(row.row_id)
        for viewer in whom:
            for table in sorted(total):
                found = ids[viewer.name, table]
                told = {"as": viewer.name, "table": table, "rows": total[table], "visible": len(found)}
                yield told | ({"rowIds": found} if listed else {})

    def changed(
        self, old: SyncRules, new: SyncRules, whom: Sequence[Viewer], *, listed: bool
    ) -> Iterator[dict[str, Any]]:
        """For each user and table of which the user would see something else: how much, and which rows."""
        counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        added: dict[tuple[str, str], list[str]] = defaultdict(list)
        removed: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in self._rows((old, new)):
            for viewer in whom:
                key = (viewer.name, row.table)
                before = matches(old, row.table, row.values, viewer.claims)
                after = matches(new, row.table, row.values, viewer.claims)
                counts[key][0] += before
                counts[key][1] += after
                if before != after:
                    (added if after else removed)[key].append(row.row_id)
        for name, table in sorted({*added, *removed}):
            key = (name, table)
            before_count, after_count = counts[key]
            told = {
                "as": name,
                "table": table,
                "before": before_count,
                "after": after_count,
                "added": len(added[key]),
                "removed": len(removed[key]),
            }
            yield told | ({"addedIds": added[key], "removedIds": removed[key]} if listed else {})

    def _rows(self, rules: Sequence[SyncRules]) -> Iterator[Row]:
        if self._file is not None:
            wanted = set(self._tables or ())
            yield from (row for row in _of_file(self._file) if not wanted or row.table in wanted)
            return
        for table in self._tables or self._known_tables(rules):
            after: str | None = None
            with output.working(f"reading {table}"):
                while True:
                    page = self.remote.get("/admin/rows/{gateway}", table=table, after=after, limit=_PAGE)
                    yield from (Row(table, each["rowId"], each["values"]) for each in page["rows"])
                    after = page["next"]
                    if after is None:
                        break

    def _known_tables(self, rules: Sequence[SyncRules]) -> list[str]:
        """Those with a schema, and those that rules name; others have to be named."""
        registered = {each["table"] for each in self.remote.get("/admin/schema/{gateway}")["schemas"]}
        named = {table for each in rules for bucket in each.buckets for table in bucket.tables}
        return sorted(registered | named)


def _of_file(path: Path) -> Iterator[Row]:
    """JSON lines: `{table, rowId, values}`, or deltas with their columns, as `lakesync pull --json` gives them."""
    import json

    from lakesync.model.errors import ValidationError

    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            values = (
                found["values"] if "values" in found else {each["column"]: each["value"] for each in found["columns"]}
            )
            if found.get("op") != "DELETE":
                yield Row(str(found["table"]), str(found["rowId"]), dict(values))
        except (ValueError, KeyError, TypeError) as error:
            raise ValidationError(f"{path}, line {number}: write {{table, rowId, values}}: {error!r}") from error
