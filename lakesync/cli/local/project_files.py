"""The files of a new project, which `lakesync init` writes: settings, a table schema and sync rules.

In `lakesync.toml`, a line that begins with `#` and no space is a setting that is switched off; removing the `#`
switches it on. Every section works like that by itself and beside the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import date
from pathlib import Path
from string import Template
from typing import NamedTuple

SETTINGS = """\
# A LakeSync project. `lakesync up` in this folder starts gateway, Spark and Dagster; Ctrl-C stops them, data stays.
# Every setting, with its default: `lakesync config show`. A variable beats each: LAKESYNC_GATEWAY_PORT=8080.
# Secrets stand here by reference only: "env:NAME" or "file:PATH". `lakesync up` makes those that nobody set.
# A line that begins with # and no space is a setting that is switched off: remove the # to switch it on.

data_dir = "lakesync-data" # everything that is kept: staging, lake, pipeline, logs

[gateway]
host = "127.0.0.1"  # set LAKESYNC_JWT_SECRET, or [[gateway.issuers]], before you open it to other machines
port = 8787
auto_create = false # only gateways that are declared below

# A gateway is one app's, or one tenant's, stream of changes. Its tables and rules are read when it starts: new columns
# are added; rules are put in force where none are yet, later ones with `lakesync rules apply rules.json`.
[gateways.$gateway]
schemas = ["schemas/todos.json"]
rules = "rules.json"
write_scope = "rules" # a client changes only rows that its rules show it, before and after; "visible": before

# The gateway that `lakesync status`, `push`, `pull` and the others talk to.
[remote]
gateway = "$gateway"

[dagster]
port = 3000
partitions_start = "$today" # the first day of the pipeline's partitions (UTC)

[spark]
memory = "2g"
cores = 2

[flush]
max_age_seconds = 30.0 # flush when the oldest unflushed delta is this old

# Backends beside the lake, by name: databases and object stores. A URI with a password is a reference, "env:NAME".
# Nothing is opened before a section below uses it. docs/adapters.md
[adapters]
reports = "sqlite://$folder/lakesync-data/reports.db"
recent = "sqlite://$folder/lakesync-data/recent.db"
finished = "sqlite://$folder/lakesync-data/finished.db"
archive = "file://$folder/lakesync-data/archive"
copy = "file://$folder/lakesync-data/copy"
"""


class Section(NamedTuple):
    """A part of `lakesync.toml` that a new project has switched off."""

    about: str
    """Comment lines, without their `#`."""
    settings: str
    """TOML."""


SECTIONS = {
    "oidc": Section(
        "A login provider signs the clients' tokens. Settings for Auth0, Clerk, Supabase, Keycloak, Firebase and your\n"
        "own backend are in docs/login.md; `lakesync token inspect` explains why a token is refused.",
        """\
[[gateway.issuers]]
issuer = $issuer # the `iss` of its tokens, letter by letter; the keys are found from there
audience = $audience # the `aud` of its tokens; without this line only tokens without `aud` are taken
client_claim = "sub" # names the client; rules read it as jwt:sub, and claims in objects as jwt:app_metadata.team
# jwks_url = "https://HOST/keys.json" where the issuer has no discovery document
# role_claim = "realm_access.roles" and admin_roles = ["sync-admin"], so that people can be admins of the gateway
# require = { azp = ["https://app.example.com"] } takes tokens of these apps alone
# With several gateways: gateway_claim = "org_id", or enter = [{ gateway = "$gateway" }]
""",
    ),
    "destination": Section(
        "A destination follows the lake: every delta, and a table of rows for each synced table.",
        """\
[destinations.reports]
to = "reports"
tables = ["todos"]
""",
    ),
    "tiers": Section(
        "Tiers keep young deltas in a database. Those older than `max_age_days` move to the archive, by a schedule\n"
        "(cron, UTC).",
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
        "A flow leads from one backend to another, as far as rows meet a filter.",
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
        "A migration copies tables from one place to another by day and table, and compares both. Choose days in\n"
        "Dagster, or with `lakesync backfill migrations/away --from $today`; a schedule (cron, UTC) copies each day.",
        """\
[migrations.away]
from = "lake"
to = "copy"
tables = ["todos"]
since = $today
schedule = "40 1 * * *"
""",
    ),
    "jira": Section(
        "A connector polls a source into the gateway. The references of its secrets begin with CONNECTOR_ and the\n"
        "gateway's id. docs/connectors.md",
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
        "The same for tables of a Postgres; connectors may call private hosts that `allowed_hosts` names.",
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

_LOCAL = """\

[connectors]
allowed_hosts = ["*", "127.0.0.1", "localhost"] # hosts of this machine too
"""
_EXAMPLES = {
    "tiers": "",
    "migration": "",
    "jira": """\
# Run `lakesync fake jira --port 8081` beside `lakesync up`, and set CONNECTOR_${gateway}_JIRATOKEN=jira-token.
# Without baseUrl the connector asks Jira Cloud.
baseUrl = "http://127.0.0.1:8081"
"""
    + _LOCAL,
    "postgres": """\

# Set CONNECTOR_${gateway}_STORE=postgresql://USER:PASSWORD@HOST/DATABASE, where the table `products` is.
"""
    + _LOCAL,
}
"""Name of an example → what it adds to its section."""
EXAMPLES = tuple(_EXAMPLES)

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
"""What stands in a new project until somebody names a provider."""


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
        folder: the project's; the local backends of its examples are files in it.
        gateway: the gateway id.
        today: the first day of the partitions.
        examples: the sections that are switched on: those of `EXAMPLES`, and `oidc`.
        issuer: of the section `oidc`.
        audience: the same.
    """
    parts = [SETTINGS]
    for name, section in SECTIONS.items():
        about = "".join(f"# {line}\n" for line in section.about.split("\n"))
        is_on = name in examples
        settings = section.settings + _EXAMPLES.get(name, "") if is_on else _switched_off(section.settings)
        parts.append(about + settings)
    values = {
        "folder": folder.resolve().as_posix(),
        "gateway": gateway,
        "today": today.isoformat(),
        "issuer": json.dumps(issuer),
        "audience": json.dumps(audience),
    }
    return Template("\n".join(parts)).substitute(values)


def _switched_off(settings: str) -> str:
    return "".join(f"#{line}\n" if line else "\n" for line in settings.splitlines())
