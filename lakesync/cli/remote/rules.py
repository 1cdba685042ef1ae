"""`lakesync rules`: validates, simulates, compares and activates sync rules.

Sync rules decide which rows a client may see. They consist of buckets: tables, and filters that compare columns with
constants or with claims of the client's token. `Simulation` evaluates rules over a gateway's rows, or over the rows of
a file, for `rules test` and `rules diff`.

In the path of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.app import command_app, examples
from lakesync.cli.options import (
    Data,
    Gateway,
    Json,
    TokenFile,
    Url,
    complete_tables,
    parse_claims,
    read_json,
    read_text,
)
from lakesync.model.errors import ValidationError
from lakesync.rules.model import SyncRules, matches, parse_rules

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.model.types import Claims

rules_app = command_app(
    "Validate, simulate, compare and activate sync rules.",
    examples(
        ("lakesync rules validate rules.json", "before a commit"),
        ("lakesync rules diff rules.json", "rows that each client would gain or lose"),
        ("lakesync rules apply rules.json", "activate them"),
    ),
)

File = Annotated[Path, typer.Argument(metavar="FILE", allow_dash=True, help="Sync rules as JSON; `-` is stdin.")]
As = Annotated[
    list[str] | None,
    typer.Option(
        "--as", metavar="CLAIMS", help="A client's claims: JSON, @FILE, or NAME=VALUE,NAME=VALUE; may be repeated."
    ),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Use only this table; may be repeated.", autocompletion=complete_tables),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        help="Use the rows of a file instead of the gateway's: JSON lines {table, rowId, values}.",
        show_default=False,
    ),
]
WithIds = Annotated[bool, typer.Option("--list", help="Print the row ids too.")]
_PAGE_SIZE = 5000
"""Rows of one request, at most."""
_MAX_CLIENTS = 100
"""Clients that `Simulation.clients` returns, at most."""


@rules_app.callback()
def rules() -> None:
    """Validate, simulate, compare and activate sync rules."""


@rules_app.command(
    epilog=examples(
        ("lakesync rules validate rules.json", "exits with 5 if they are invalid"),
        ("lakesync rules validate rules.json --schemas schemas", "also check the columns that they name"),
    )
)
def validate(
    file: File,
    schemas: Annotated[
        Path | None,
        typer.Option(help="Schema file, or folder of schema files, that the rules must fit.", show_default=False),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Validate sync rules without a gateway."""
    sync_rules = _parse(file, read_json(file))
    if schemas is not None:
        _check_names(sync_rules, schemas)
    summary = {"valid": True, "buckets": len(sync_rules.buckets), "version": sync_rules.version}
    output.fields(summary, as_json=as_json)


@rules_app.command(epilog=examples(("lakesync rules show --json > rules.json", "save the active rules")))
def show(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """Show the active sync rules."""
    from lakesync.cli.connection import connect

    active = connect(url, gateway, token_file, data).get("/admin/sync-rules/{gateway}")["rules"]
    if as_json:
        output.record(active)
        return
    rows = [
        {
            "bucket": bucket["name"],
            "tables": ", ".join(bucket["tables"]) or "every table",
            "where": " and ".join(f"{each['column']} {each['op']} {each['value']}" for each in bucket["filters"]),
        }
        for bucket in (active or {}).get("buckets", [])
    ]
    output.records(rows, as_json=False, none="there are no buckets, so every client sees every row")


@rules_app.command(
    "test",
    epilog=examples(
        ("lakesync rules test --as sub=alice,team=red", "rows that Alice sees"),
        ("lakesync rules test rules.json --as sub=alice --as sub=bob --list", "rows that others would see"),
        ("lakesync rules test rules.json --rows rows.jsonl --as sub=alice --json", "without a gateway"),
    ),
)
def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", allow_dash=True, help="Sync rules; default: the active ones.", show_default=False
        ),
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    with_ids: WithIds = False,
    as_json: Json = False,
) -> None:
    """Simulate sync rules: count the rows that a client would see."""
    from lakesync.cli.connection import connect

    viewers = parse_viewers(claims)
    if not viewers:
        raise typer.BadParameter("no client is given; give --as CLAIMS with a sub")
    simulation = Simulation(partial(connect, url, gateway, token_file, data), rows, table)
    chosen = _parse(file, read_json(file)) if file is not None else simulation.active_rules()
    output.records(
        simulation.count_visible(chosen, viewers, with_ids=with_ids),
        as_json=as_json,
        columns=("as", "table", "rows", "visible", *(("rowIds=row ids",) if with_ids else ())),
        none="there are no rows",
    )


@rules_app.command(
    epilog=examples(
        ("lakesync rules diff rules.json", "for each client that the gateway knows"),
        ("lakesync rules diff rules.json --as sub=alice,team=red --list", "for one client, with row ids"),
        ("lakesync rules diff new.json --from old.json --rows rows.jsonl --as sub=alice", "without a gateway"),
    )
)
def diff(
    file: File,
    before: Annotated[
        Path | None, typer.Option("--from", help="Rules to compare with; default: the active ones.", show_default=False)
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    with_ids: WithIds = False,
    as_json: Json = False,
) -> None:
    """Compare sync rules: count the rows that each client would gain or lose.

    Without --as, compares for each client that the gateway process knows, with the claims of its last pull that the
    active rules read. Rules on other claims need --as.
    """
    from lakesync.cli.connection import connect

    simulation = Simulation(partial(connect, url, gateway, token_file, data), rows, table)
    new = _parse(file, read_json(file))
    old = _parse(before, read_json(before)) if before is not None else simulation.active_rules()
    viewers = parse_viewers(claims) or simulation.clients()
    if not viewers:
        raise typer.BadParameter("the gateway knows no clients yet; give --as CLAIMS")
    output.records(
        simulation.compare(old, new, viewers, with_ids=with_ids),
        as_json=as_json,
        columns=(
            "as",
            "table",
            "before",
            "after",
            "added",
            "removed",
            *(("addedIds", "removedIds") if with_ids else ()),
        ),
        none="no client would see a difference",
    )


@rules_app.command(epilog=examples(("lakesync rules diff rules.json && lakesync rules apply rules.json", "")))
def apply(
    file: File,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Activate sync rules.

    Clients gain and lose rows accordingly; preview the change with `lakesync rules diff`.
    """
    from lakesync.cli.connection import OPEN_WRITE_SCOPE_WARNING, connect

    content: Any = read_json(file)  # once, because the file may be stdin
    sync_rules = _parse(file, content)
    remote = connect(url, gateway, token_file, data)
    output.fields(remote.post("/admin/sync-rules/{gateway}", content), as_json=as_json)
    if sync_rules.buckets and remote.get("/admin/settings/{gateway}")["writeScope"] == "any":
        output.note(f"warning: {OPEN_WRITE_SCOPE_WARNING} by POST /admin/settings/{remote.gateway}")


def _parse(file: Path, content: Any) -> SyncRules:
    """Return the sync rules in the JSON of a file; raise ValidationError, which names the file, if they are invalid."""
    try:
        return parse_rules(content)
    except ValidationError as error:
        raise ValidationError(f"{file}: {error}") from error


def _check_names(sync_rules: SyncRules, schemas: Path) -> None:
    """Check that the tables and columns that rules name exist in the schemas.

    Args:
        sync_rules: the rules.
        schemas: a schema file, or a folder of schema files.

    Raises:
        ValidationError: a table or column does not exist.
    """
    from lakesync.model.schema import parse_schema

    files = sorted(schemas.glob("*.json")) if schemas.is_dir() else [schemas]
    known = {schema.table: schema.types for schema in (parse_schema(read_json(path)) for path in files)}
    for bucket in sync_rules.buckets:
        for table in bucket.tables or known:
            if table not in known:
                raise ValidationError(
                    f"bucket {bucket.name!r} names table {table!r}, which has no schema in {schemas}; "
                    f"known tables: {', '.join(sorted(known)) or 'none'}"
                )
            missing = [each.column for each in bucket.filters if each.column not in known[table]]
            if missing and bucket.tables:  # a bucket for every table may skip those that lack its column
                raise ValidationError(
                    f"bucket {bucket.name!r} filters on column {missing[0]!r}, which table {table!r} lacks, so no row "
                    "would match; correct the column"
                )


class Viewer(NamedTuple):
    """A client for which rules are evaluated."""

    name: str
    """The client's id, or the text of `--as`, for the output."""
    claims: Claims


class Row(NamedTuple):
    """A row that is not deleted."""

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
            connect: returns the connection to the gateway, as an admin; called at most once.
            rows: a file with rows; None: the gateway's rows.
            tables: the tables to use; None: all.
        """
        self._connect = connect
        self._file = rows
        self._tables = tables

    @cached_property
    def _remote(self) -> GatewayConnection:
        """The connection to the gateway, created at first use."""
        return self._connect()

    def active_rules(self) -> SyncRules:
        """Return the gateway's rules; if it has none, rules by which every client sees every row."""
        rules = self._remote.get("/admin/sync-rules/{gateway}")["rules"]
        return parse_rules(rules) if rules is not None else SyncRules(1, ())

    def clients(self) -> list[Viewer]:
        """Return the clients that called the gateway process since it started, with the claims of their last pulls."""
        clients = self._remote.get("/admin/metrics/{gateway}", clients=_MAX_CLIENTS)["clients"]
        viewers = []
        for client in clients:
            client_id = client["clientId"]
            # Any row will do: the response has the client's claims, whether or not the row exists.
            explained = self._remote.get("/admin/explain/{gateway}", clientId=client_id, table="none", rowId="none")
            viewers.append(Viewer(client_id, explained["client"]["claims"]))
        return viewers

    def count_visible(self, rules: SyncRules, viewers: Sequence[Viewer], *, with_ids: bool) -> Iterator[dict[str, Any]]:
        """Yield, for each client and table, the number of rows and of visible rows.

        Args:
            rules: the sync rules.
            viewers: the clients.
            with_ids: whether to add the ids of the visible rows.
        """
        total: dict[str, int] = defaultdict(int)
        ids: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in self._rows((rules,)):
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
        for row in self._rows((old, new)):
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

    def _rows(self, rules: Sequence[SyncRules]) -> Iterator[Row]:
        """Yield the rows of the file, or of the gateway's tables that have a schema or that the rules name."""
        if self._file is not None:
            wanted = set(self._tables or ())
            yield from (row for row in _rows_in_file(self._file) if not wanted or row.table in wanted)
            return
        for table in self._tables or self._known_tables(rules):
            after: str | None = None
            with output.spinner(f"reading {table}"):
                while True:
                    page = self._remote.get("/admin/rows/{gateway}", table=table, after=after, limit=_PAGE_SIZE)
                    yield from (Row(table, each["rowId"], each["values"]) for each in page["rows"])
                    after = page["next"]
                    if after is None:
                        break

    def _known_tables(self, rules: Sequence[SyncRules]) -> list[str]:
        """Return the tables with a schema and those that rules name. Others must be given by --table."""
        registered = {each["table"] for each in self._remote.get("/admin/schema/{gateway}")["schemas"]}
        named = {table for each in rules for bucket in each.buckets for table in bucket.tables}
        return sorted(registered | named)


def _rows_in_file(path: Path) -> Iterator[Row]:
    """Yield the rows of JSON lines `{table, rowId, values}`, or of deltas as `lakesync pull --json` prints them.

    The deltas of a row may be on several lines; they are merged.
    """
    import json

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
                (delta,) = decode_deltas(f"[{line}]".encode())
                states.setdefault(key, RowState()).merge(delta)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            raise ValidationError(f"{path}, line {number} is neither a row nor a delta: {error!r}") from error
    for key, state in states.items():
        if state.visible:
            yield Row(*key, {name: json.loads(bytes(value)) for name, value in state.values().items()})
