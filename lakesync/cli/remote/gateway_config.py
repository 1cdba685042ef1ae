"""`lakesync rules` and `lakesync schema`: the sync rules and the table schemas of a gateway.

`rules` validates, simulates, compares and activates sync rules, which decide which rows a client may see. They consist
of buckets: tables, and filters that compare columns with constants or with *claims*, the fields of the client's token.
`rules test` and `rules diff` use a `Simulation`, which evaluates rules over a gateway's rows, or over the rows of a
file.

`schema` registers, lists and retires schemas. A schema has the columns of a table and their types. The gateway rejects
pushed values that do not fit.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. A
gateway is one app's stream of changes; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.commands import ConnectionOptions, Json, command_app, complete_tables, examples
from lakesync.cli.input_files import read_json
from lakesync.cli.remote.rules_simulation import Simulation, parse_viewers
from lakesync.model.errors import SchemaError, ValidationError
from lakesync.rules.model import SyncRules, parse_rules

rules_app = command_app(
    "Validate, simulate, compare and activate sync rules.",
    examples(
        ("lakesync rules validate rules.json", "before a commit"),
        ("lakesync rules diff rules.json", "rows that each client would gain or lose"),
        ("lakesync rules apply rules.json", "activate them"),
    ),
)
schema_app = command_app(
    "Register, list and retire table schemas.",
    examples(("lakesync schema apply schemas/*.json", "register tables and added columns")),
)

T = TypeVar("T")
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
    typer.Option("--rows", help="Use the rows of a file instead of the gateway's: JSON lines {table, rowId, values}."),
]
WithIds = Annotated[bool, typer.Option("--list", help="Print the row ids too.")]


@rules_app.command(
    epilog=examples(
        ("lakesync rules validate rules.json", "exits with 5 if they are invalid"),
        ("lakesync rules validate rules.json --schemas schemas", "also check the columns that they name"),
    )
)
def validate(
    file: File,
    schemas: Annotated[
        Path | None, typer.Option(help="Schema file, or folder of schema files, that the rules must fit.")
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Validate sync rules without a gateway."""
    sync_rules = _read_rules(file)
    if schemas is not None:
        _check_names(sync_rules, schemas)
    summary = {"valid": True, "buckets": len(sync_rules.buckets), "version": sync_rules.version}
    output.print_fields(summary, as_json=as_json)


@rules_app.command(epilog=examples(("lakesync rules show --json > rules.json", "save the active rules")))
def show(*, options: ConnectionOptions, as_json: Json = False) -> None:
    """Show the active sync rules."""
    active = options.connect().get("/admin/sync-rules/{gateway}")["rules"]
    if as_json:
        output.print_json(active)
        return
    rows = [
        {
            "bucket": bucket["name"],
            "tables": ", ".join(bucket["tables"]) or "every table",
            "where": " and ".join(f"{each['column']} {each['op']} {each['value']}" for each in bucket["filters"]),
        }
        for bucket in (active or {}).get("buckets", [])
    ]
    output.print_rows(rows, as_json=False, if_empty="there are no buckets, so every client sees every row")


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
        Path | None, typer.Argument(metavar="FILE", allow_dash=True, help="Sync rules; default: the active ones.")
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    *,
    options: ConnectionOptions,
    with_ids: WithIds = False,
    as_json: Json = False,
) -> None:
    """Simulate sync rules: count the rows that a client would see."""
    viewers = parse_viewers(claims)
    if not viewers:
        raise typer.BadParameter("no client is given; give --as CLAIMS with a sub")
    simulation = Simulation(options.connect, rows, table)
    chosen = _read_rules(file) if file is not None else simulation.active_rules
    output.print_rows(
        simulation.count_visible(chosen, viewers, with_ids=with_ids),
        as_json=as_json,
        columns=("as", "table", "rows", "visible", *(("rowIds=row ids",) if with_ids else ())),
        if_empty="there are no rows",
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
        Path | None, typer.Option("--from", help="Rules to compare with; default: the active ones.")
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    *,
    options: ConnectionOptions,
    with_ids: WithIds = False,
    as_json: Json = False,
) -> None:
    """Count the rows that each client would gain or lose.

    Without --as, compares for each client that called the gateway process since it started. The process knows only
    those claims of a client that the active rules use; rules on other claims need --as, else the exit code is 6.
    """
    simulation = Simulation(options.connect, rows, table)
    new = _read_rules(file)
    old = _read_rules(before) if before is not None else simulation.active_rules
    viewers = parse_viewers(claims)
    gaps: list[str] = []
    if not viewers:
        viewers = simulation.clients()
        gaps = simulation.gaps((old, new), viewers)
    if not viewers:
        raise typer.BadParameter("the gateway knows no clients yet; give --as CLAIMS")
    output.print_rows(
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
        if_empty="no client would see a difference",
    )
    exit_codes.exit_if_incomplete(gaps, as_json=as_json)


@rules_app.command(epilog=examples(("lakesync rules diff rules.json && lakesync rules apply rules.json", "")))
def apply(file: File, *, options: ConnectionOptions, as_json: Json = False) -> None:
    """Activate sync rules.

    Clients gain and lose rows accordingly; preview the change with `lakesync rules diff`.
    """
    content = read_json(file)
    rules = _parsed(file, content, parse_rules)
    remote = options.connect()
    # The write scope `any` lets clients bypass rules. It is read first, so that an error activates nothing.
    warning = remote.write_scope_warning() if rules.buckets else None
    output.print_fields(remote.post("/admin/sync-rules/{gateway}", content), as_json=as_json)
    if warning is not None:
        output.note(f"warning: {warning} by POST /admin/settings/{remote.gateway}")


@schema_app.command("list", epilog=examples(("lakesync schema list --json", "with all columns and types")))
def list_schemas(*, options: ConnectionOptions, as_json: Json = False) -> None:
    """List the registered schemas."""
    schemas = options.connect().get("/admin/schema/{gateway}")["schemas"]
    rows = schemas if as_json else ({**each, "columns": _column_list(each["schema"])} for each in schemas)
    output.print_rows(
        rows, as_json=as_json, columns=("table", "version", "columns"), if_empty="no schema is registered"
    )


@schema_app.command(
    "apply", epilog=examples(("lakesync schema apply schemas/todos.json", "repeating it changes nothing"))
)
def apply_schemas(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="JSON files with one schema each; `-` is stdin.")
    ],
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Register schemas, or columns that were added to them.

    All files are validated before the first one is sent. The command stops at the first schema that the gateway
    rejects; earlier ones stay registered.
    """
    from lakesync.model.schema import parse_schema

    contents = [read_json(path) for path in files]
    tables = [_parsed(path, content, parse_schema).table for path, content in zip(files, contents, strict=True)]
    remote = options.connect()
    for table, content in zip(tables, contents, strict=True):
        response = remote.post("/admin/schema/{gateway}", content)
        output.print_line(f"{table}: version {response['version']}", {"table": table, **response}, as_json=as_json)
    active = remote.get("/admin/sync-rules/{gateway}")["rules"]
    rules = parse_rules(active) if active else None
    if rules is not None and (hidden := [table for table in tables if not rules.covers(table)]):
        output.note(f"warning: no bucket of the sync rules contains {', '.join(hidden)}, so no client sees its rows")


@schema_app.command(epilog=examples(("lakesync schema retire drafts", "rows stay in the lake and on clients")))
def retire(
    table: Annotated[str, typer.Argument(help="The table.")], *, options: ConnectionOptions, as_json: Json = False
) -> None:
    """Retire a table's schema; pushes to it are not validated then.

    Rows and the columns of the lake's table stay. A schema that is still in lakesync.toml stays retired when the
    gateway restarts; only `lakesync schema apply` registers it again.
    """
    response = options.connect().delete("/admin/schema/{gateway}", table)
    output.print_line(f"{table}: retired, version {response['version']}", {"table": table, **response}, as_json=as_json)


def _read_rules(file: Path) -> SyncRules:
    """Return the sync rules in a file; `-` is stdin.

    Raises:
        typer.BadParameter: the file cannot be read.
        ValidationError: the rules are invalid.
    """
    return _parsed(file, read_json(file), parse_rules)


def _parsed(file: Path, content: Any, parse: Callable[[Any], T]) -> T:
    """Parse the JSON of a file; raise ValidationError, which names the file, if it is invalid."""
    try:
        return parse(content)
    except (SchemaError, ValidationError) as error:
        raise ValidationError(f"{file}: {error}") from error


def _check_names(sync_rules: SyncRules, schemas: Path) -> None:
    """Check that the tables and columns that rules name exist in the schemas.

    Args:
        sync_rules: the rules.
        schemas: a schema file, or a folder of schema files.

    Raises:
        ValidationError: a schema is invalid, or a table or column does not exist.
    """
    from lakesync.model.schema import parse_schema

    files = sorted(schemas.glob("*.json")) if schemas.is_dir() else [schemas]
    known = {schema.table: schema.types for schema in (_parsed(path, read_json(path), parse_schema) for path in files)}
    for bucket in sync_rules.buckets:
        columns = {each.column for each in bucket.filters}
        if not bucket.tables and known and not any(columns <= types.keys() for types in known.values()):
            raise ValidationError(
                f"bucket {bucket.name!r} filters on {', '.join(sorted(columns))}, which no table in {schemas} has, so "
                "no row would match; correct the columns"
            )
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


def _column_list(schema_json: dict[str, list[dict[str, str]]]) -> str:
    """Return the columns of a schema as text: `title string, done boolean`."""
    return ", ".join(f"{column['name']} {column['type']}" for column in schema_json["columns"])
