"""`lakesync schema`: registers, lists and retires table schemas at a gateway.

A schema has the columns of a table and their types. The gateway rejects pushed values that do not fit. A parameter
`options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. In the path
of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.commands import ConnectionOptions, Json, command_app, examples
from lakesync.cli.input_files import read_json
from lakesync.model.errors import SchemaError, ValidationError

schema_app = command_app(
    "Register, list and retire table schemas.",
    examples(("lakesync schema apply schemas/*.json", "register tables and added columns")),
)


@schema_app.command("list", epilog=examples(("lakesync schema list --json", "with all columns and types")))
def list_(*, options: ConnectionOptions, as_json: Json = False) -> None:
    """List the registered schemas."""
    schemas = options.connect().get("/admin/schema/{gateway}")["schemas"]
    rows = schemas if as_json else ({**each, "columns": _column_list(each["schema"])} for each in schemas)
    output.print_rows(
        rows, as_json=as_json, columns=("table", "version", "columns"), if_empty="no schema is registered"
    )


@schema_app.command(epilog=examples(("lakesync schema apply schemas/todos.json", "repeating it changes nothing")))
def apply(
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
    contents = [read_json(path) for path in files]
    tables = [_table_of(path, content) for path, content in zip(files, contents, strict=True)]
    remote = options.connect()
    for table, content in zip(tables, contents, strict=True):
        response = remote.post("/admin/schema/{gateway}", content)
        if as_json:
            output.print_json({"table": table, **response})
        else:
            print(f"{table}: version {response['version']}")


@schema_app.command(epilog=examples(("lakesync schema retire drafts", "rows stay in the lake and on clients")))
def retire(
    table: Annotated[str, typer.Argument(help="The table.")], *, options: ConnectionOptions, as_json: Json = False
) -> None:
    """Retire a table's schema, so that pushes to the table are not validated.

    Rows and the columns of the lake's table stay. A schema that is still in lakesync.toml stays retired when the
    gateway restarts; only `lakesync schema apply` registers it again.
    """
    response = options.connect().delete("/admin/schema/{gateway}", table)
    if as_json:
        output.print_json({"table": table, **response})
    else:
        print(f"{table}: retired, version {response['version']}")


def _table_of(file: Path, content: Any) -> str:
    """Return the table of a schema file's JSON; raise ValidationError, which names the file, if it is not a schema."""
    from lakesync.model.schema import parse_schema

    try:
        return parse_schema(content).table
    except (SchemaError, ValidationError) as error:
        raise ValidationError(f"{file}: {error}") from error


def _column_list(schema_json: dict[str, list[dict[str, str]]]) -> str:
    """Return the columns of a schema as text: `title string, done boolean`."""
    return ", ".join(f"{column['name']} {column['type']}" for column in schema_json["columns"])
