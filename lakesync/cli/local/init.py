"""`lakesync init`: the files of a new project."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.local.project_files import AUDIENCE, EXAMPLES, ISSUER, RULES, SCHEMA, settings_text
from lakesync.cli.options import Json

app = command_app()


_IGNORED = "lakesync-data/\n"


@app.command(
    epilog=examples(
        ("lakesync init", "in this folder"),
        ("lakesync init shop --gateway shop && cd shop && lakesync up", "in a new one"),
        ("lakesync init desk --example jira", "with a connector to Jira switched on"),
        ("lakesync init app --auth oidc --issuer https://login.example.com/", "for the tokens of a login provider"),
    )
)
def init(
    folder: Annotated[Path, typer.Argument(help="Where; it is made if need be.")] = Path(),
    gateway: Annotated[str, typer.Option("--gateway", "-g", help="The gateway id.")] = "app",
    example: Annotated[
        list[str] | None,
        typer.Option(help=f"Switch a section on: {', '.join(EXAMPLES)}; may be repeated.", show_default=False),
    ] = None,
    auth: Annotated[
        Literal["secret", "oidc"],
        typer.Option(help="Who signs tokens: a secret of the gateway's own, or a login provider too."),
    ] = "secret",
    issuer: Annotated[
        str | None, typer.Option(help="The provider's `iss`, with --auth oidc.", show_default=False)
    ] = None,
    audience: Annotated[
        str | None, typer.Option(help="The `aud` of its tokens, with --auth oidc.", show_default=False)
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented lakesync.toml, a schema and rules that `lakesync up` runs."""
    from lakesync.model.errors import ConfigurationError, DuplicateError
    from lakesync.model.validation import check_gateway_id, check_keys_url

    if fault := check_gateway_id(gateway):
        raise typer.BadParameter(fault)
    wanted = list(example or [])
    if unknown := [name for name in wanted if name not in EXAMPLES]:
        raise typer.BadParameter(f"there is no example {unknown[0]!r}: there are {', '.join(EXAMPLES)}")
    if auth != "oidc" and (issuer is not None or audience is not None):
        raise typer.BadParameter("--issuer and --audience belong to --auth oidc")
    if fault := check_keys_url("--issuer", issuer or ISSUER):
        raise typer.BadParameter(fault)
    if auth == "oidc":
        wanted.append("oidc")
    today = datetime.now(UTC).date()
    files = {
        folder / "lakesync.toml": settings_text(
            folder, gateway, today, wanted, issuer=issuer or ISSUER, audience=audience or AUDIENCE
        ),
        folder / "schemas" / "todos.json": json.dumps(SCHEMA, indent=2) + "\n",
        folder / "rules.json": json.dumps(RULES, indent=2) + "\n",
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
    if auth == "oidc" and not (issuer and audience):
        output.note("set issuer and audience in lakesync.toml to those of your provider: docs/login.md")
    where = "" if folder == Path() else f"cd {folder} && "
    platform = "" if find_spec("dagster") else " (after pip install 'lakesync[platform]')"
    output.note(f"next: {where}lakesync up{platform}, then lakesync token create --gateway {gateway} --client alice")
