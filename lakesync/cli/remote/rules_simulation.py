"""`Simulation` evaluates sync rules over rows, for `lakesync rules test` and `rules diff`.

Sync rules decide which rows a client may see. They consist of buckets: tables, and filters that compare columns with
constants or with *claims*, the fields of the client's token. The rows are those of a gateway (one app's stream of
changes), or of a file. In the path of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.commands import parse_claims
from lakesync.cli.input_files import read_text
from lakesync.model.errors import ValidationError
from lakesync.rules.model import SyncRules, matches, parse_rules

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.model.types import Claims

_PAGE_SIZE = 5000
"""Rows of one request, at most."""
_MAX_CLIENTS = 1000
"""Clients that `Simulation.clients` returns, at most: as many as the gateway lists."""


class Viewer(NamedTuple):
    """A client for which rules are evaluated."""

    name: str
    """The client's id, or the text of `--as`, for the output."""
    claims: Claims


class Row(NamedTuple):
    """A row for which rules are evaluated. It is not deleted."""

    table: str
    row_id: str
    values: dict[str, Any]
    """The row's decoded values by column."""


def parse_viewers(options: Sequence[str] | None) -> list[Viewer]:
    """Parse the values of `--as` options.

    Raises:
        typer.BadParameter: claims have an invalid form, or lack `sub`.
    """
    viewers = []
    for text in options or ():
        claims = parse_claims(text) or {}
        if not isinstance(claims.get("sub"), str):
            raise typer.BadParameter(f"--as is {text!r}, which has no sub; add the client id as sub=ID")
        viewers.append(Viewer(text, claims))
    return viewers


class Simulation:
    """Evaluates sync rules over rows. The gateway is called only if its rules, rows or clients are needed."""

    def __init__(
        self, connect: Callable[[], GatewayConnection], rows: Path | None, tables: Sequence[str] | None
    ) -> None:
        """Choose the rows; none is read yet.

        Args:
            connect: returns a connection to the gateway, as an admin; called at most once.
            rows: a file with rows; None: the gateway's rows.
            tables: the tables to use; None: all.
        """
        self._connect = connect
        self._file = rows
        self._tables = tables

    @cached_property
    def active_rules(self) -> SyncRules:
        """The gateway's rules; if it has none, rules by which every client sees every row."""
        rules = self._remote.get("/admin/sync-rules/{gateway}")["rules"]
        return parse_rules(rules) if rules is not None else SyncRules(1, ())

    def clients(self) -> list[Viewer]:
        """Return the clients that called the gateway process since it started, with the claims that it knows of them.

        It knows the values, at a client's last pull, of those claims that the active rules compare with columns.
        """
        clients = self._remote.get("/admin/metrics/{gateway}", clients=_MAX_CLIENTS)["clients"]
        viewers = []
        for client in clients:
            client_id = client["clientId"]
            # The response has the client's claims, whether or not the row exists.
            explained = self._remote.get("/admin/explain/{gateway}", clientId=client_id, table="none", rowId="none")
            viewers.append(Viewer(client_id, explained["client"]["claims"]))
        return viewers

    def gaps(self, rules: Sequence[SyncRules], viewers: Sequence[Viewer]) -> list[str]:
        """Return sentences on what an evaluation of rules for the gateway's clients leaves out.

        Args:
            rules: the sync rules that are evaluated.
            viewers: the result of `clients`.
        """
        found = []
        unknown = sorted(_claims_of(rules) - _claims_of((self.active_rules,)) - {"sub"})
        if unknown:
            found.append(f"the gateway does not know its clients' {', '.join(unknown)}, which no active rule uses")
        if len(viewers) == _MAX_CLIENTS:
            found.append(f"at most {_MAX_CLIENTS} clients are compared")
        return [f"{each}: name clients with --as CLAIMS" for each in found]

    def count_visible(self, rules: SyncRules, viewers: Sequence[Viewer], *, with_ids: bool) -> Iterator[dict[str, Any]]:
        """Yield, for each client and table, the number of rows and of visible rows.

        Args:
            rules: the sync rules.
            viewers: the clients.
            with_ids: whether to add the ids of the visible rows.
        """
        total: dict[str, int] = defaultdict(int)
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in self._rows():
            total[row.table] += 1
            for viewer in viewers:
                if matches(rules, row.table, row.values, viewer.claims):
                    ids[viewer.name, row.table].append(row.row_id)
        for viewer in viewers:
            for table in sorted(total):
                visible_ids = ids[viewer.name, table]
                counts = {"as": viewer.name, "table": table, "rows": total[table], "visible": len(visible_ids)}
                yield counts | ({"rowIds": visible_ids} if with_ids else {})

    def compare(
        self, old: SyncRules, new: SyncRules, viewers: Sequence[Viewer], *, with_ids: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield, for each client and table with a difference, the number of rows gained and lost.

        Args:
            old: the rules before the change.
            new: the rules after it.
            viewers: the clients.
            with_ids: whether to add the ids of these rows.
        """
        count_before: dict[tuple[str, str], int] = defaultdict(int)
        count_after: dict[tuple[str, str], int] = defaultdict(int)
        added: dict[tuple[str, str], list[str]] = defaultdict(list)
        removed: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in self._rows():
            for viewer in viewers:
                key = (viewer.name, row.table)
                before = matches(old, row.table, row.values, viewer.claims)
                after = matches(new, row.table, row.values, viewer.claims)
                count_before[key] += before
                count_after[key] += after
                if before != after:
                    (added if after else removed)[key].append(row.row_id)
        for name, table in sorted({*added, *removed}):
            key = (name, table)
            difference = {
                "as": name,
                "table": table,
                "before": count_before[key],
                "after": count_after[key],
                "added": len(added[key]),
                "removed": len(removed[key]),
            }
            yield difference | ({"addedIds": added[key], "removedIds": removed[key]} if with_ids else {})

    @cached_property
    def _remote(self) -> GatewayConnection:
        """The connection to the gateway, created at first use."""
        return self._connect()

    def _rows(self) -> Iterator[Row]:
        """Yield the rows of the file, or of the gateway's tables."""
        if self._file is not None:
            wanted = set(self._tables or ())
            yield from (row for row in _rows_in_file(self._file) if not wanted or row.table in wanted)
            return
        for table in self._tables or self._remote.get("/admin/schema/{gateway}", tables="true")["tables"]:
            after: str | None = None
            with output.spinner(f"reading {table}"):
                while True:
                    page = self._remote.get("/admin/rows/{gateway}", table=table, after=after, limit=_PAGE_SIZE)
                    yield from (Row(table, each["rowId"], each["values"]) for each in page["rows"])
                    after = page["next"]
                    if after is None:
                        break


def _claims_of(rules: Sequence[SyncRules]) -> set[str]:
    """Return the claims that rules compare with columns."""
    buckets = (bucket for each in rules for bucket in each.buckets)
    return {each.claim for bucket in buckets for each in bucket.filters if each.claim is not None}


def _rows_in_file(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of JSON lines: rows `{table, rowId, values}`, or deltas of `lakesync pull --json`.

    A row may have several deltas, one on each line, which are merged.
    """
    from lakesync.model.merge import RowState
    from lakesync.wire.json import decode_deltas

    states: dict[tuple[str, str], RowState] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            key = str(item["table"]), str(item["rowId"])
            if "values" in item:
                yield Row(*key, dict(item["values"]))
            else:
                (delta,) = decode_deltas(f"[{line}]".encode())  # it decodes a JSON list
                states.setdefault(key, RowState()).merge(delta)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise ValidationError(f"{path}, line {number} is neither a row nor a delta: {error!r}") from error
    for key, state in states.items():
        if state.visible:
            yield Row(*key, {name: json.loads(bytes(value)) for name, value in state.values().items()})
