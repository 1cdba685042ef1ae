"""`lakesync rules`: sync rules checked, tried as a user, compared, and put in force."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import completion, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, read_json

if TYPE_CHECKING:
    from lakesync.rules.model import SyncRules

app = command_app(
    "Check sync rules, try them as a user, and see what a change would do to whom.",
    examples(
        ("lakesync rules validate rules.json", "before a commit"),
        ("lakesync rules diff rules.json", "what it would add and remove, for each client"),
        ("lakesync rules apply rules.json", "put them in force"),
    ),
)

ANY_READS = (
    "the write scope is `any`: a client can move any row into its own sight and read it; set `visible` or `rules`"
)
"""What `rules apply` and `doctor` warn of."""

File = Annotated[Path, typer.Argument(metavar="FILE", allow_dash=True, help="Rules as JSON; `-` is stdin.")]
As = Annotated[
    list[str] | None,
    typer.Option("--as", metavar="CLAIMS", help="JSON, @FILE, or NAME=VALUE,NAME=VALUE; may be repeated."),
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", "-t", help="Only this table; may be repeated.", autocompletion=completion.tables),
]
Rows = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        help="Rows to try them on, instead of the gateway's: JSON lines {table, rowId, values}.",
        show_default=False,
    ),
]
Listed = Annotated[bool, typer.Option("--list", help="Name the rows, too.")]


@app.callback()
def rules() -> None:
    """Check sync rules, try them as a user, and see what a change would do to whom."""


@app.command(
    epilog=examples(
        ("lakesync rules validate rules.json", "exit code 5 where they are wrong"),
        ("lakesync rules validate rules.json --schemas schemas", "and every column that they name is there"),
    )
)
def validate(
    file: File,
    schemas: Annotated[
        Path | None, typer.Option(help="A schema's file, or a folder of them, that they must fit.", show_default=False)
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Check rules without a gateway."""
    found = _parsed(file)
    if schemas is not None:
        _check_names(found, schemas)
    output.facts({"valid": True, "buckets": len(found.buckets), "version": found.version}, as_json=as_json)


@app.command(epilog=examples(("lakesync rules show --json > rules.json", "those in force")))
def show(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """Show the rules in force."""
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).get("/admin/sync-rules/{gateway}")
    if as_json:
        output.record(told["rules"])
        return
    rows = [
        {
            "bucket": bucket["name"],
            "tables": ", ".join(bucket["tables"]) or "every table",
            "where": " and ".join(f"{each['column']} {each['op']} {each['value']}" for each in bucket["filters"]),
        }
        for bucket in (told["rules"] or {}).get("buckets", [])
    ]
    output.records(rows, as_json=False, none="there are no buckets: every client sees every row")


@app.command(
    "test",
    epilog=examples(
        ("lakesync rules test --as sub=alice,team=red", "what she would see by the rules in force"),
        ("lakesync rules test rules.json --as sub=alice --as sub=bob --list", "by others"),
        ("lakesync rules test rules.json --rows rows.jsonl --as sub=alice --json", "without a gateway"),
    ),
)
def try_(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", allow_dash=True, help="Rules; none: those in force.", show_default=False),
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    listed: Listed = False,
    as_json: Json = False,
) -> None:
    """Say what a user would see: how many rows of each table, and with --list which."""
    from lakesync.cli.remote.rules_simulation import Trial, viewers

    whom = viewers(claims)
    if not whom:
        raise typer.BadParameter("whose view? Give --as CLAIMS, sub among them")
    trial = Trial(url, gateway, token_file, data, rows, table)
    chosen = _parsed(file) if file is not None else trial.in_force()
    output.records(
        trial.seen(chosen, whom, listed=listed),
        as_json=as_json,
        columns=("as", "table", "rows", "visible", *(("rowIds=row ids",) if listed else ())),
        none="there are no rows",
    )


@app.command(
    epilog=examples(
        ("lakesync rules diff rules.json", "for every client that the gateway saw lately"),
        ("lakesync rules diff rules.json --as sub=alice,team=red --list", "for her, row by row"),
        ("lakesync rules diff new.json --from old.json --rows rows.jsonl --as sub=alice", "without a gateway"),
    )
)
def diff(
    file: File,
    before: Annotated[
        Path | None, typer.Option("--from", help="Rules to compare with; none: those in force.", show_default=False)
    ] = None,
    claims: As = None,
    table: Tables = None,
    rows: Rows = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    listed: Listed = False,
    as_json: Json = False,
) -> None:
    """Say what a change of rules would add and remove, and for whom.

    Without --as: for each client that this process of the gateway saw, by the claims of its last pull that the rules
    in force read. A rule on another claim needs --as.
    """
    from lakesync.cli.remote.rules_simulation import Trial, viewers

    trial = Trial(url, gateway, token_file, data, rows, table)
    new = _parsed(file)
    old = _parsed(before) if before is not None else trial.in_force()
    whom = viewers(claims) or trial.clients()
    if not whom:
        raise typer.BadParameter("the gateway has seen no client yet: give --as CLAIMS")
    output.records(
        trial.changed(old, new, whom, listed=listed),
        as_json=as_json,
        columns=("as", "table", "before", "after", "added", "removed", *(("addedIds", "removedIds") if listed else ())),
        none="nobody would see anything else",
    )


@app.command(epilog=examples(("lakesync rules diff rules.json && lakesync rules apply rules.json", "")))
def apply(
    file: File,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Put rules in force. Clients get and lose rows by it as if the rows had moved; `diff` says which."""
    from lakesync.cli.connection import connect

    found = _parsed(file)
    body: Any = read_json(file)
    remote = connect(url, gateway, token_file, data)
    told = remote.post("/admin/sync-rules/{gateway}", body)
    output.facts(told, as_json=as_json)
    if found.buckets and remote.get("/admin/settings/{gateway}")["writeScope"] == "any":
        output.note(f"warning: {ANY_READS}; POST /admin/settings/{remote.gateway} sets another")


def _parsed(file: Path) -> SyncRules:
    from lakesync.model.errors import ValidationError
    from lakesync.rules.model import parse_rules

    found = read_json(file)
    try:
        return parse_rules(found)
    except ValidationError as error:
        raise ValidationError(f"{file}: {error}") from error


def _check_names(found: SyncRules, schemas: Path) -> None:
    """That tables and columns of rules are there."""
    from lakesync.model.errors import ValidationError
    from lakesync.model.schema import parse_schema

    files = sorted(schemas.glob("*.json")) if schemas.is_dir() else [schemas]
    known = {schema.table: schema.types for schema in (parse_schema(read_json(path)) for path in files)}
    for bucket in found.buckets:
        for table in bucket.tables or known:
            if table not in known:
                raise ValidationError(
                    f"bucket {bucket.name!r} is about table {table!r}, of which {schemas} has no schema; "
                    f"there are {', '.join(sorted(known)) or 'none'}"
                )
            missing = [each.column for each in bucket.filters if each.column not in known[table]]
            if missing and bucket.tables:
                raise ValidationError(
                    f"bucket {bucket.name!r} filters on {missing[0]!r}, which table {table!r} does not have: "
                    "no row of it would ever be seen"
                )
