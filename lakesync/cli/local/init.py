"""`lakesync init`: writes the files of a new project: settings, a table schema and sync rules.

In `lakesync.toml`, a line that starts with `#` without a space is a disabled setting; removing the `#` enables it. Each
section works alone and together with the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote

import typer

from lakesync.cli import output
from lakesync.cli.command_app import command_app, examples
from lakesync.cli.options import Json
from lakesync.model.errors import ConfigurationError, DuplicateError

_SETTINGS = """\
# A LakeSync project. `lakesync up` in this folder starts the gateway, Spark and Dagster; Ctrl-C stops them, data stays.
# docs/configuration.md lists every setting. A variable overrides each: LAKESYNC_GATEWAY_PORT=8080.
# Write secrets as references only: "env:NAME" or "file:PATH". `lakesync up` generates secrets that are not set.
# A line that starts with # without a space is a disabled setting: remove the # to enable it.

data_dir = "lakesync-data" # folder for all data: staging, lake, pipeline, logs

[gateway]
host = "127.0.0.1"  # set LAKESYNC_JWT_SECRET or [[gateway.issuers]] before you listen on other addresses
port = 8787
auto_create = false # serve only the gateways that are declared below

# A gateway is the stream of changes of one app or tenant. Its files are read when it starts: new tables and columns are
# registered, and rules are activated if it has none yet. Change rules later with `lakesync rules apply rules.json`.
[gateways.$gateway]
schemas = ["schemas/todos.json"]
rules = "rules.json"
write_scope = "rules" # the rules must show a row to the client that changes it, before and after; "visible": before

# The gateway that `lakesync status`, `push`, `pull` and other commands call.
[remote]
gateway = "$gateway"

[dagster]
port = 3000
partitions_start = "$today" # first day (UTC) of the daily partitions

[spark]
memory = "2g"
cores = 2

[flush]
max_age_seconds = 30.0 # flush when the oldest unflushed delta is this old

# Backends beside the lake, by name: databases and object stores. A URI with a password must be a reference, as in
# "env:NAME". A backend is opened only if a section below uses it. See docs/adapters.md.
[adapters]
reports = "sqlite://$folder/lakesync-data/reports.db"
recent = "sqlite://$folder/lakesync-data/recent.db"
finished = "sqlite://$folder/lakesync-data/finished.db"
archive = "file://$folder/lakesync-data/archive"
copy = "file://$folder/lakesync-data/copy"
"""
"""The first part of `lakesync.toml`; `$gateway`, `$today` and `$folder` are placeholders."""

init_app = command_app()


_GITIGNORE = "lakesync-data/\n"


class _Section(NamedTuple):
    """A part of `lakesync.toml` that is disabled in a new project, unless an example enables it."""

    about: str
    """Comment lines, without `#`."""
    settings: str
    """The settings as TOML; `$gateway`, `$today` and so on are placeholders."""


_SECTIONS = {
    "oidc": _Section(
        "A login provider signs the clients' tokens. docs/login.md has settings for Auth0, Clerk, Supabase, Keycloak,\n"
        "Firebase and your own backend; `lakesync token inspect` explains why a token is rejected.",
        """\
[[gateway.issuers]]
issuer = $issuer # the `iss` of its tokens, compared exactly; its discovery document names the keys
audience = $audience # the `aud` of its tokens; without this line only tokens without `aud` are accepted
client_claim = "sub" # the client id; rules read it as jwt:sub, and nested claims as jwt:app_metadata.team
# jwks_url = "https://HOST/keys.json" if the issuer has no discovery document
# role_claim = "realm_access.roles" and admin_roles = ["sync-admin"] make users admins of the gateway
# require = { azp = ["https://app.example.com"] } accepts only tokens of these apps
# With several gateways: gateway_claim = "org_id", or enter = [{ gateway = "$gateway" }]
""",
    ),
    "destination": _Section(
        "A destination receives every delta of the lake, and has a table of current rows for each synced table.",
        """\
[destinations.reports]
to = "reports"
tables = ["todos"]
""",
    ),
    "tiers": _Section(
        "Tiers keep recent deltas in a database. Deltas older than `max_age_days` move to the archive on a cron\n"
        "schedule (UTC).",
        """\
[tiers.aged]
hot = "recent"
cold = "archive"
max_age_days = 30
schedule = "20 2 * * *"

[destinations.aged]
to = "aged"
""",
    ),
    "flow": _Section(
        "A flow copies the rows that meet a filter from one backend to another.",
        """\
[flows.finished]
from = "reports"
to = "finished"
tables = ["todos"]
where = [{ column = "done", op = "eq", value = "true" }]
schedule = "*/5 * * * *"
""",
    ),
    "migration": _Section(
        "A migration copies tables from one backend to another by day and table, and verifies the copy. Choose days\n"
        "in Dagster, or with `lakesync backfill migrations/away --from $today`; a cron schedule (UTC) copies each day.",
        """\
[migrations.away]
from = "lake"
to = "copy"
tables = ["todos"]
since = $today
schedule = "40 1 * * *"
""",
    ),
    "connectors": _Section(
        "Connectors may call public hosts and the hosts in `allowed_hosts`.",
        """\
[connectors]
allowed_hosts = ["*", "127.0.0.1", "localhost"]
""",
    ),
    "jira": _Section(
        "A connector polls an external system into the gateway. References of its secrets start with CONNECTOR_ and\n"
        "the gateway id. See docs/connectors.md.",
        """\
[connectors.support]
gateway = "$gateway"
type = "jira"
ingest = { intervalMs = 60000 }

[connectors.support.jira]
domain = "example"
email = "sync@example.com"
apiToken = "env:CONNECTOR_${gateway}_JIRATOKEN"
jql = "project = SUP"
""",
    ),
    "postgres": _Section(
        "A connector for tables in Postgres.",
        """\
[connectors.store]
gateway = "$gateway"
type = "postgres"

[connectors.store.postgres]
connectionString = "env:CONNECTOR_${gateway}_STORE"

[connectors.store.ingest]
intervalMs = 60000

[[connectors.store.ingest.tables]]
table = "products"
query = "SELECT id, name, price, updated_at FROM products"
rowIdColumn = "id"
strategy = { type = "cursor", cursorColumn = "updated_at" }
""",
    ),
}

_EXAMPLE_LINES = {
    "tiers": "",
    "migration": "",
    "jira": """\
# Run `lakesync fake jira --port 8081` beside `lakesync up`, and set CONNECTOR_${gateway}_JIRATOKEN=jira-token.
# Without baseUrl the connector calls Jira Cloud.
baseUrl = "http://127.0.0.1:8081"
""",
    "postgres": """\

# Set CONNECTOR_${gateway}_STORE=postgresql://USER:PASSWORD@HOST/DATABASE to a database with a table `products`.
""",
}
"""The lines that each example (`lakesync init --example`) adds to the section of the same name."""
_EXAMPLES = tuple(_EXAMPLE_LINES)
"""The names of the examples."""
_CONNECTOR_EXAMPLES = frozenset({"jira", "postgres"})
"""Examples with a connector. Its server may be on this machine, which the section `connectors` must allow."""

_TODOS = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "owner", "type": "string"},
        {"name": "team", "type": "string"},
    ],
}
"""The schema of a new project's only table, in `schemas/todos.json`."""

RULES = {
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
"""The sync rules of a new project, in `rules.json`: a client sees its own rows and those of its teams."""


_ISSUER, _AUDIENCE = "https://login.example.com/", "https://sync.example.com"
"""The `iss` and `aud` in the settings of a project for which no login provider was named."""


def _settings_text(
    folder: Path,
    gateway: str,
    today: date,
    examples: Collection[str] = (),
    *,
    issuer: str = _ISSUER,
    audience: str = _AUDIENCE,
) -> str:
    """Return a project's `lakesync.toml`.

    Args:
        folder: the project's folder, in which the local backends of its examples are files.
        gateway: the gateway id.
        today: the first day of the daily partitions.
        examples: the sections to enable: names in `_EXAMPLES`, and `oidc`.
        issuer: the `iss` of the login provider's tokens, for the section `oidc`.
        audience: the `aud` of the login provider's tokens, for the section `oidc`.
    """
    parts = [_SETTINGS]
    for name, section in _SECTIONS.items():
        about = "".join(f"# {line}\n" for line in section.about.split("\n"))
        is_enabled = name in examples or (name == "connectors" and not _CONNECTOR_EXAMPLES.isdisjoint(examples))
        settings = section.settings + _EXAMPLE_LINES.get(name, "") if is_enabled else _comment_out(section.settings)
        parts.append(about + settings)
    values = {
        "folder": quote(folder.resolve().as_posix()),
        "gateway": gateway,
        "today": today.isoformat(),
        "issuer": json.dumps(issuer),
        "audience": json.dumps(audience),
    }
    return Template("\n".join(parts)).substitute(values)


def _comment_out(settings: str) -> str:
    """Return settings with `#` before each line."""
    return "".join(f"#{line}\n" if line else "\n" for line in settings.splitlines())


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
        list[str] | None,
        typer.Option(help=f"Enable a section: {', '.join(_EXAMPLES)}; may be repeated.", show_default=False),
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
    files = {
        folder / "lakesync.toml": _settings_text(
            folder, gateway, today, enabled, issuer=issuer or _ISSUER, audience=audience or _AUDIENCE
        ),
        folder / "schemas" / "todos.json": json.dumps(_TODOS, indent=2) + "\n",
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
        output.print_json({"written": [str(path) for path in files]})
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
