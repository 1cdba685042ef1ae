"""`lakesync init`: writes the files of a new project: settings, a table schema and sync rules.

The files are copies of those in the folder `new_project`. In `lakesync.toml`, placeholders such as `$gateway` are
replaced. A line of it that starts with `#` without a space is a disabled setting. `--example` and `--auth oidc` enable
the settings of a section by removing the `#`, as a user would. Each section works alone and together with the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Literal
from urllib.parse import quote

import typer

from lakesync.cli import output
from lakesync.cli.commands import Json, command_app, examples
from lakesync.model.errors import ConfigurationError, DuplicateError

init_app = command_app()

_TEMPLATES = files(__package__).joinpath("new_project")
_GITIGNORE_LINE = "lakesync-data/"
_DISABLED = re.compile(r"^#(?! )", re.MULTILINE)
"""The `#` before a disabled setting."""
_SECTION_START = "\n\n# "
"""Before each section of `lakesync.toml` that an option can enable: they begin with a comment."""

_TABLES = {
    "tiers": "[tiers.aged]",
    "migration": "[migrations.away]",
    "jira": "[connectors.support]",
    "postgres": "[connectors.store]",
    "oidc": "[[gateway.issuers]]",
    "connectors": "[connectors]",
}
"""Name of a section that an option can enable → its first TOML table."""
_EXAMPLE_LINES = {
    "tiers": "",
    "migration": "",
    "jira": """
# Run `lakesync fake jira --port 8081` beside `env CONNECTOR_${gateway}_JIRATOKEN=jira-token lakesync up`.
# Without baseUrl the connector calls Jira Cloud.
baseUrl = "http://127.0.0.1:8081\"""",
    "postgres": """

# Run `env CONNECTOR_${gateway}_STORE=postgresql://USER:PASSWORD@HOST/DATABASE lakesync up`, with a database that has
# a table `products`.""",
}
"""The lines that each example (`lakesync init --example`) adds to the section of the same name."""
_EXAMPLES = tuple(_EXAMPLE_LINES)
"""The names of the examples."""
_CONNECTOR_EXAMPLES = frozenset({"jira", "postgres"})
"""Examples with a connector. Its server may be on this machine, which the section `connectors` must allow."""
_ISSUER, _AUDIENCE = "https://login.example.com/", "https://sync.example.com"
"""The `iss` and `aud` in the settings of a project for which no login provider was named."""


@init_app.command(
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
        list[str] | None, typer.Option(help=f"Enable a section: {', '.join(_EXAMPLES)}; may be repeated.")
    ] = None,
    auth: Annotated[
        Literal["secret", "oidc"],
        typer.Option(help="Verify tokens with a secret, or with a login provider's keys too."),
    ] = "secret",
    issuer: Annotated[str | None, typer.Option(help="The provider's `iss`, with --auth oidc.")] = None,
    audience: Annotated[str | None, typer.Option(help="The `aud` of its tokens, with --auth oidc.")] = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files; .gitignore is extended.")] = False,
    as_json: Json = False,
) -> None:
    """Create a project: lakesync.toml, a table schema and sync rules.

    `lakesync up` in the folder runs it.
    """
    from lakesync.model.validation import check_gateway_id, check_keys_url

    if problem := check_gateway_id(gateway):
        raise typer.BadParameter(problem)
    enabled = list(example or [])
    if unknown := [name for name in enabled if name not in _EXAMPLES]:
        raise typer.BadParameter(f"--example is {unknown[0]!r}; it must be one of {', '.join(_EXAMPLES)}")
    if auth != "oidc" and (issuer is not None or audience is not None):
        raise typer.BadParameter("--issuer and --audience need --auth oidc; add it or leave them out")
    if problem := check_keys_url("--issuer", issuer or _ISSUER):
        raise typer.BadParameter(problem)
    if auth == "oidc":
        enabled.append("oidc")
    today = datetime.now(UTC).date()
    texts = {
        folder / "lakesync.toml": _settings_text(
            folder, gateway, today, enabled, issuer=issuer or _ISSUER, audience=audience or _AUDIENCE
        ),
        **{
            folder / name: _TEMPLATES.joinpath(name).read_text("utf-8") for name in ("schemas/todos.json", "rules.json")
        },
        folder / ".gitignore": _gitignore_text(folder / ".gitignore"),
    }
    _write_files(texts, force=force)
    if as_json:
        output.print_json({"written": [str(path) for path in texts]})
        return
    for path in texts:
        print(path)
    if auth == "oidc" and not (issuer and audience):
        output.note("set issuer and audience in lakesync.toml to those of your provider; see docs/login.md")
    change_folder = "" if folder == Path() else f"cd {folder} && "
    platform = "" if find_spec("dagster") else " (after pip install 'lakesync[platform]')"
    output.note(
        f"next: {change_folder}lakesync up{platform}, then lakesync token create --gateway {gateway} --client alice"
    )


def _write_files(texts: Mapping[Path, str], *, force: bool) -> None:
    """Write the project's files, and create their folders.

    Raises:
        DuplicateError: a file exists, and `force` is false; nothing was written.
        ConfigurationError: a file cannot be written.
    """
    existing = [path for path in texts if path.exists()]
    if existing and not force:
        raise DuplicateError(
            f"{', '.join(map(str, existing))} already exist; overwrite with --force, or choose another folder"
        )
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error


def _gitignore_text(path: Path) -> str:
    """Return the text of a project's `.gitignore`: the lines that the file has already, and the data folder."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if _GITIGNORE_LINE not in lines:
        lines.append(_GITIGNORE_LINE)
    return "\n".join(lines) + "\n"


def _settings_text(
    folder: Path, gateway: str, today: date, enabled: Collection[str], *, issuer: str, audience: str
) -> str:
    """Return a project's `lakesync.toml`.

    Args:
        folder: the project's folder, in which the local backends of its examples are files.
        gateway: the gateway id.
        today: the first day of the daily partitions of Dagster's assets.
        enabled: the sections to enable: names in `_EXAMPLES`, and `oidc`.
        issuer: the `iss` of the login provider's tokens, for the section `oidc`.
        audience: the `aud` of the login provider's tokens, for the section `oidc`.
    """
    names = {*enabled}
    if not _CONNECTOR_EXAMPLES.isdisjoint(enabled):
        names.add("connectors")
    sections = _TEMPLATES.joinpath("lakesync.toml.template").read_text("utf-8").rstrip().split(_SECTION_START)
    for index, section in enumerate(sections):
        for name in names:
            if f"#{_TABLES[name]}\n" in section:
                sections[index] = _DISABLED.sub("", section) + _EXAMPLE_LINES.get(name, "")
    values = {
        "folder": quote(folder.resolve().as_posix()),
        "gateway": gateway,
        "today": today.isoformat(),
        "issuer": json.dumps(issuer),
        "audience": json.dumps(audience),
    }
    return Template(_SECTION_START.join(sections) + "\n").substitute(values)
