"""`lakesync rules`: validates, simulates, compares and activates sync rules.

Sync rules decide which rows a client may see. They consist of buckets: tables, and filters that compare columns with
constants or with claims of the client's token.

In the path of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, complete_tables, read_json
from lakesync.model.errors import ValidationError

if TYPE_CHECKING:
    from lakesync.rules.model import SyncRules

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
    from lakesync.cli.remote.rules_simulation import Simulation, parse_viewers

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
    from lakesync.cli.remote.rules_simulation import Simulation, parse_viewers

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
    from lakesync.rules.model import parse_rules

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
            if missing and bucket.tables:
                raise ValidationError(
                    f"bucket {bucket.name!r} filters on column {missing[0]!r}, which table {table!r} lacks, so no row "
                    "would match; correct the column"
                )
