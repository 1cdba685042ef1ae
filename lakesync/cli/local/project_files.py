"""The files of a new project, which `lakesync init` writes: settings, a table schema and sync rules.

In `lakesync.toml`, a line that starts with `#` without a space is a disabled setting; removing the `#` enables it. Each
section works alone and together with the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import date
from pathlib import Path
from string import Template
from typing import NamedTuple

SETTINGS = """\
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
write_scope = "rules" # clients change only rows that the rules show them, before and after; "visible": before

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


class Section(NamedTuple):
    """A part of `lakesync.toml` that is disabled in a new project, unless an example enables it."""

    about: str
    """Comment lines, without `#`."""
    settings: str
    """The settings as TOML; `$gateway`, `$today` and so on are placeholders."""


SECTIONS = {
    "oidc": Section(
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
    "destination": Section(
        "A destination receives every delta of the lake, and has a table of current rows for each synced table.",
        """\
[destinations.reports]
to = "reports"
tables = ["todos"]
""",
    ),
    "tiers": Section(
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
    "flow": Section(
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
    "migration": Section(
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
    "connectors": Section(
        "Connectors may call public hosts and the hosts in `allowed_hosts`.",
        """\
[connectors]
allowed_hosts = ["*", "127.0.0.1", "localhost"]
""",
    ),
    "jira": Section(
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
    "postgres": Section(
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
EXAMPLES = tuple(_EXAMPLE_LINES)
"""The names of the examples."""
CONNECTORS = frozenset({"jira", "postgres"})
"""Examples that poll a server of this machine, which the section `connectors` must allow."""

SCHEMA = {
    "table": "todos",
    "columns": [
        {"name": "title", "type": "string"},
        {"name": "done", "type": "boolean"},
        {"name": "owner", "type": "string"},
        {"name": "team", "type": "string"},
    ],
}

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


ISSUER, AUDIENCE = "https://login.example.com/", "https://sync.example.com"
"""Placeholders in a new project without a provider."""


def settings_text(
    folder: Path,
    gateway: str,
    today: date,
    examples: Collection[str] = (),
    *,
    issuer: str = ISSUER,
    audience: str = AUDIENCE,
) -> str:
    """Return a project's `lakesync.toml`.

    Args:
        folder: the project's folder, in which the local backends of its examples are files.
        gateway: the gateway id.
        today: the first day of the daily partitions.
        examples: the sections to enable: names in `EXAMPLES`, and `oidc`.
        issuer: the `iss` of the login provider's tokens, for the section `oidc`.
        audience: the `aud` of the login provider's tokens, for the section `oidc`.
    """
    parts = [SETTINGS]
    for name, section in SECTIONS.items():
        about = "".join(f"# {line}\n" for line in section.about.split("\n"))
        is_enabled = name in examples or (name == "connectors" and not CONNECTORS.isdisjoint(examples))
        settings = section.settings + _EXAMPLE_LINES.get(name, "") if is_enabled else _disabled(section.settings)
        parts.append(about + settings)
    values = {
        "folder": folder.resolve().as_posix(),
        "gateway": gateway,
        "today": today.isoformat(),
        "issuer": json.dumps(issuer),
        "audience": json.dumps(audience),
    }
    return Template("\n".join(parts)).substitute(values)


def _disabled(settings: str) -> str:
    """Return settings with `#` before each line."""
    return "".join(f"#{line}\n" if line else "\n" for line in settings.splitlines())
