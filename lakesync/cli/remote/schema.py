"""`lakesync schema`: the tables that a gateway knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, read_json

app = command_app(
    "Register table schemas, list them, and retire them.",
    examples(("lakesync schema apply schemas/*.json", "new tables, and columns that were added")),
)


@app.callback()
def schema() -> None:
    """Register table schemas, list them, and retire them."""


@app.command("list", epilog=examples(("lakesync schema list --json", "every column and its type")))
def list_(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """List the registered schemas."""
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).get("/admin/schema/{gateway}")["schemas"]
    rows = told if as_json else ({**each, "columns": _columns(each["schema"])} for each in told)
    output.records(rows, as_json=as_json, columns=("table", "version", "columns"), none="no schema is registered")


@app.command(epilog=examples(("lakesync schema apply schemas/todos.json", "the same again changes nothing")))
def apply(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSON, a schema each; `-` is stdin.")],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Register schemas, or add the columns that they have grown; all files are checked before the first is sent."""
    from lakesync.cli.connection import connect

    found = [read_json(path) for path in files]
    tables = [_table(path, each) for path, each in zip(files, found, strict=True)]
    remote = connect(url, gateway, token_file, data)
    for table, each in zip(tables, found, strict=True):
        told = remote.post("/admin/schema/{gateway}", each)
        if as_json:
            output.record({"table": table, **told})
        else:
            print(f"{table}: version {told['version']}")


@app.command(epilog=examples(("lakesync schema retire drafts", "its rows stay, in the lake and at clients")))
def retire(
    table: Annotated[str, typer.Argument(help="The table.", show_default=False)],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Retire a table's schema: pushes to the table are no longer checked.

    Rows, and the columns that the lake's table has, stay. A schema of lakesync.toml that was retired is registered
    again by `lakesync schema apply` alone.
    """
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).delete(f"/admin/schema/{{gateway}}/{quote(table, safe='')}")
    if as_json:
        output.record({"table": table, **told})
    else:
        print(f"{table}: retired, version {told['version']}")


def _table(file: Path, found: Any) -> str:
    from lakesync.model.errors import SchemaError, ValidationError
    from lakesync.model.schema import parse_schema

    try:
        return parse_schema(found).table
    except (SchemaError, ValidationError) as error:
        raise ValidationError(f"{file}: {error}") from error


def _columns(found: dict[str, list[dict[str, str]]]) -> str:
    return ", ".join(f"{column['name']} {column['type']}" for column in found["columns"])
