"""`lakesync init`: the files of a new project."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Json

app = command_app()


_TOML = """\
# A LakeSync project. `lakesync up` in this folder starts gateway, Spark and Dagster; Ctrl-C stops them, data stays.
# Every setting, with its default: `lakesync config show`. A variable beats each: LAKESYNC_GATEWAY_PORT=8080.
# Secrets stand here by reference only: "env:NAME" or "file:PATH". `lakesync up` makes those that nobody set.

data_dir = "lakesync-data" # everything that is kept: staging, lake, pipeline, logs

[gateway]
host = "127.0.0.1"  # set jwt_secret, or LAKESYNC_JWT_SECRET, before you open it to other machines
port = 8787
auto_create = false # only gateways that are declared below

# A gateway is one app's, or one tenant's, stream of changes. Its tables and rules are read when it starts: new columns
# are added; rules are put in force where none are yet, later ones with `lakesync rules apply rules.json`.
[gateways.{gateway}]
schemas = ["schemas/todos.json"]
rules = "rules.json"
write_scope = "rules" # a client changes only rows that its rules show it, before and after; "visible": before

# The gateway that `lakesync status`, `push`, `pull` and the others talk to.
[remote]
gateway = "{gateway}"

[dagster]
port = 3000

[spark]
memory = "2g"
cores = 2

[flush]
age_seconds = 30.0 # how long a change waits for the lake at most

# Backends besides the lake, tiers, sources, connectors: docs/adapters.md, docs/connectors.md
"""

_SCHEMA = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "owner", "type": "string"},
        {"name": "team", "type": "string"},
    ],
}

_RULES = {
    "version": 1,
    "buckets": [
        {
            "name": "mine",
            "tables": ["todos"],
            "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}],
        },
        {
            "name": "team",
            "tables": ["todos"],
            "filters": [{"column": "team", "op": "in", "value": "jwt:team"}],
        },
    ],
}

_IGNORED = "lakesync-data/\n"


@app.command(
    epilog=examples(
        ("lakesync init", "in this folder"),
        ("lakesync init shop --gateway shop && cd shop && lakesync up", "in a new one"),
    )
)
def init(
    folder: Annotated[Path, typer.Argument(help="Where; it is made if need be.")] = Path(),
    gateway: Annotated[str, typer.Option("--gateway", "-g", help="The gateway id.")] = "app",
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented lakesync.toml, a schema and rules that `lakesync up` runs."""
    from lakesync.exceptions import ConfigurationError, DuplicateError
    from lakesync.validation import check_gateway_id

    if fault := check_gateway_id(gateway):
        raise typer.BadParameter(fault)
    files = {
        folder / "lakesync.toml": _TOML.format(gateway=gateway),
        folder / "schemas" / "todos.json": json.dumps(_SCHEMA, indent=2) + "\n",
        folder / "rules.json": json.dumps(_RULES, indent=2) + "\n",
        folder / ".gitignore": _IGNORED,
    }
    there = [path for path in files if path.exists()]
    if there and not force:
        raise DuplicateError(
            f"{', '.join(map(str, there))}: there already; --force writes over, or choose another folder"
        )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error
    if as_json:
        output.record({"written": [str(path) for path in files]})
        return
    for path in files:
        print(path)
    where = "" if folder == Path() else f"cd {folder} && "
    platform = "" if find_spec("gateway") else " (where the platform is installed: scripts/install in a checkout)"
    output.note(f"next: {where}lakesync up{platform}, then lakesync token create --gateway {gateway} --client alice")
