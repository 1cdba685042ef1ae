"""Takes the picture destinations.png: the lineage of a lake with four destinations, flows, tiers and a migration.

`scripts/destinations-picture` runs it. Postgres, MariaDB, S3 (moto) and BigQuery (an emulator) really run, and deltas
are moved between them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pymysql
import requests
from dagster_pictures import browser_page, take
from dagster_scene import Scene, running, until

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.backend_servers import bigquery_server, mariadb_server, s3_server
from tests.postgres_server import postgres_server

_VIEWPORT = {"width": 2400, "height": 1800}
_GROUPS = ("gateway", "flush", "destinations", "backends", "flows", "tiers", "migrations")
"""The asset groups in the picture."""
_SETTINGS = """
[adapters]
postgres = "env:PICTURE_POSTGRES"
mysql = "env:PICTURE_MYSQL"
s3 = "env:PICTURE_S3"
bigquery = "env:PICTURE_BIGQUERY"
archive = "sqlite://{folder}/archive.db"

[tiers.aged]
hot = "postgres"
cold = "archive"
max_age_days = 3

[fan_out.both]
primary = "aged"
secondaries = ["mysql", "bigquery"]

[routes.warehouse]
tables = {{ flights = "s3" }}
default = "both"

[destinations.warehouse]
to = "warehouse"

[flows.big_planes]
from = "bigquery"
to = "archive"
tables = ["planes"]
where = [{{ column = "seats", op = "gte", value = "150" }}]
schedule = "* * * * *"

[flows.home]
from = "archive"
to = "lake"
into = "home"
schedule = "* * * * *"

[migrations.leave]
from = "mysql"
to = "archive"
tables = ["carriers", "planes"]
since = 2026-11-01
"""
"""The system's lakesync.toml; `{folder}` is a placeholder."""
_ASSET_COUNT = 6
"""Assets of these destinations and flows: one for each adapter that a destination writes to, and one for each flow."""
_MATERIALISED = "{ assetNodes { assetKey { path } groupName assetMaterializations(limit: 1) { runId } } }"


def main(into: Path) -> None:
    """Push the data of two days, and take the picture when all destinations and flows have run.

    Args:
        into: folder for the picture.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ |= _servers(stack)
        (folder / "picture.toml").write_text(_SETTINGS.format(folder=folder), "utf-8")
        scene = stack.enter_context(running(folder / "data", LAKESYNC_CONFIG=str(folder / "picture.toml")))
        scene.register()
        for days_back in (1, 0):
            scene.push_day(days_back)
        scene.flush()
        until(lambda: _all_materialised(scene), "every destination and flow")
        with browser_page() as page:
            page.set_viewport_size(_VIEWPORT)
            wanted = quote(" or ".join(f'group:"{group}"' for group in _GROUPS), safe="")
            expanded = ",".join(f"global@global:{group}" for group in _GROUPS)
            lineage = f"{scene.dagster}/asset-groups~{wanted}?expanded={expanded}"
            page.goto(lineage)
            page.get_by_text("Hide navigation").click()
            page.get_by_label("panel_show_right").click()  # hide the list of assets, so that the graph is larger
            take(page, lineage, "bigquery", into / "destinations.png")


def _servers(stack: ExitStack) -> dict[str, str]:
    """Start the backends, and return the variables with their URIs."""
    endpoint = stack.enter_context(s3_server())
    requests.put(f"{endpoint}/events", timeout=30)
    emulator = stack.enter_context(bigquery_server()).endpoint
    about = {"datasetReference": {"projectId": "p", "datasetId": "analytics"}}
    requests.post(f"{emulator}/bigquery/v2/projects/p/datasets", json=about, timeout=60)
    maria = stack.enter_context(mariadb_server())
    with pymysql.connect(host="127.0.0.1", port=maria.port, user="root") as sql, sql.cursor() as cursor:
        cursor.execute("CREATE DATABASE warehouse")
    return {
        "PICTURE_POSTGRES": stack.enter_context(postgres_server()).uri,
        "PICTURE_MYSQL": f"{maria.uri}/warehouse",
        "PICTURE_S3": f"s3://events/deltas?endpoint={endpoint}&region=us-east-1&access_key=k&secret_key=s",
        "PICTURE_BIGQUERY": f"bigquery://p/analytics?endpoint={emulator}",
    }


def _all_materialised(scene: Scene) -> bool:
    """Return whether every destination and flow has been materialised."""
    nodes = [
        node for node in scene.query(_MATERIALISED)["assetNodes"] if node["groupName"] in {"destinations", "flows"}
    ]
    return len(nodes) == _ASSET_COUNT and all(node["assetMaterializations"] for node in nodes)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img"))
