"""`lakesync init`: writes the files of a new project, whose contents are in `project_files`."""

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


_GITIGNORE = "lakesync-data/\n"


@app.command(
    epilog=examples(
        ("lakesync init", "in the current folder"),
        ("lakesync init shop --gateway shop && cd shop && lakesync up", "in a new folder"),
        ("lakesync init desk --example jira", "with a Jira connector"),
        ("lakesync init app --auth oidc --issuer https://login.example.com/", "with a login provider"),
    )
)
def init(
    folder: Annotated[Path, typer.Argument(help="The project's folder; created if missing.")] = Path(),
    gateway: Annotated[str, typer.Option("--gateway", "-g", help="The gateway id.")] = "app",
    example: Annotated[
        list[str] | None,
        typer.Option(help=f"Enable a section: {', '.join(EXAMPLES)}; may be repeated.", show_default=False),
    ] = None,
    auth: Annotated[
        Literal["secret", "oidc"],
        typer.Option(help="Verify tokens with a secret, or with a login provider's keys too."),
    ] = "secret",
    issuer: Annotated[
        str | None, typer.Option(help="The provider's `iss`, with --auth oidc.", show_default=False)
    ] = None,
    audience: Annotated[
        str | None, typer.Option(help="The `aud` of its tokens, with --auth oidc.", show_default=False)
    ] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: Json = False,
) -> None:
    """Create a project: lakesync.toml, a table schema and sync rules.

    `lakesync up` in the folder runs it.
    """
    from lakesync.model.errors import ConfigurationError, DuplicateError
    from lakesync.model.validation import check_gateway_id, check_keys_url

    if problem := check_gateway_id(gateway):
        raise typer.BadParameter(problem)
    enabled = list(example or [])
    if unknown := [name for name in enabled if name not in EXAMPLES]:
        raise typer.BadParameter(f"--example is {unknown[0]!r}; it must be one of {', '.join(EXAMPLES)}")
    if auth != "oidc" and (issuer is not None or audience is not None):
        raise typer.BadParameter("--issuer and --audience need --auth oidc; add it or leave them out")
    if problem := check_keys_url("--issuer", issuer or ISSUER):
        raise typer.BadParameter(problem)
    if auth == "oidc":
        enabled.append("oidc")
    today = datetime.now(UTC).date()
    files = {
        folder / "lakesync.toml": settings_text(
            folder, gateway, today, enabled, issuer=issuer or ISSUER, audience=audience or AUDIENCE
        ),
        folder / "schemas" / "todos.json": json.dumps(SCHEMA, indent=2) + "\n",
        folder / "rules.json": json.dumps(RULES, indent=2) + "\n",
        folder / ".gitignore": _GITIGNORE,
    }
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise DuplicateError(
            f"{', '.join(map(str, existing))} already exist; overwrite with --force, or choose another folder"
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
        output.note("set issuer and audience in lakesync.toml to those of your provider; see docs/login.md")
    change_folder = "" if folder == Path() else f"cd {folder} && "
    platform = "" if find_spec("dagster") else " (after pip install 'lakesync[platform]')"
    output.note(
        f"next: {change_folder}lakesync up{platform}, then lakesync token create --gateway {gateway} --client alice"
    )
