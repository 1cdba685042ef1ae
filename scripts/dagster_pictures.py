"""Takes pictures of Dagster's pages, and of Spark's UI, in a real browser, for the docs.

`scripts/dagster-pictures` and `scripts/screenshot-lineage` run it; `destinations_picture` uses its functions. With a
running system it takes lineage.png, run.png, materialization.png, table.png and spark.png. Otherwise it starts one, and
takes house.png (the lineage), backfill-….png (a backfill of each kind of asset), failed-run.png and failed-check.png (a
row that a state table has twice).
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import requests
from dagster_scene import DAYS, TABLES, Scene, running
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Page

GROUPS = ("clients", "gateway", "flush", "tables", "checkpoint_snapshots", "checkpoint")
"""The asset groups in the pictures of the lineage."""
_PATIENCE_MS = 300_000
"""Longest time to wait for something on a page."""
_NEWEST = """{
  runsOrError(limit: 1, filter: {statuses: [SUCCESS], pipelineName: "flush"}) { ... on Runs { results { runId } } }
  assetNodes { assetKey { path } groupName }
}"""
SETTINGS = """
[adapters]
copy = "sqlite://{folder}/copy.db"
archive = "sqlite://{folder}/archive.db"
other = "sqlite://{folder}/other.db"
cancelled = "sqlite://{folder}/cancelled.db"

[connectors]
allowed_hosts = ["*", "127.0.0.1"]

[tiers.aged]
hot = "copy"
cold = "archive"
max_age_days = 2

[destinations.shop]
to = "aged"

[flows.cancelled]
from = "copy"
to = "cancelled"
where = [{{ column = "cancelled", op = "eq", value = "true" }}]

[migrations.away]
from = "lake"
to = "other"
tables = ["flights", "planes"]
since = {since}
"""
"""A lakesync.toml with destinations, tiers, a flow and a migration, so that their assets exist."""
BACKFILLS = {
    "deltas": ["deltas"],
    "tables": [f"tables/{table}" for table in TABLES],
    "checkpoint": ["checkpoint"],
    "destination": ["destinations/shop/copy"],
    "tiers": ["tiers/aged"],
    "flow": ["flows/cancelled"],
    "migration": ["migrations/away"],
    "maintenance": ["maintenance"],
}
"""A picture's name → the assets of its backfill."""
_HAS_SUCCEEDED = re.compile(r"Succeeded \([1-9]")
_HAS_ERRORED = re.compile(r"Errored \([1-9]")
"""Headings of a run's steps. They count no step, and the bars are white, until the browser has read the run's log."""


def main() -> None:
    """Take the pictures of a running system (`--url`), or of one that is started and filled with data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("docs/img"), help="folder for the pictures")
    parser.add_argument("--url", help="URL of a running Dagster; default: start `lakesync up` with data of six days")
    parser.add_argument("--spark-ui", help="URL of Spark's UI, with --url; default: take no picture of it")
    parser.add_argument("--data", type=Path, help="data folder of `lakesync up`; default: a new temporary folder")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    if options.url:
        with browser_page() as page:
            take_running(page, options.url.rstrip("/"), options.into, options.spark_ui and options.spark_ui.rstrip("/"))
        return
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "lakesync.toml"
        since = datetime.now(UTC).date() - timedelta(days=DAYS)
        settings.write_text(SETTINGS.format(folder=scratch, since=since), "utf-8")
        with running(options.data or Path(scratch) / "data", LAKESYNC_CONFIG=str(settings)) as scene:
            take_all(scene, options.into)


@contextmanager
def browser_page() -> Iterator[Page]:
    """Yield a page of a real browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        yield page
        browser.close()


def take(page: Page, url: str, text: str | re.Pattern[str], file: Path) -> None:
    """Open a page, wait until it has loaded and shows a text, and save a picture of it.

    Args:
        page: a browser page.
        url: URL of the page.
        text: the text that must be shown, or a pattern of it.
        file: the picture's file.
    """
    page.goto(url)
    page.get_by_text(text).first.wait_for()
    expect(page.get_by_text("Loading")).to_have_count(0, timeout=_PATIENCE_MS)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)
    print(file)


def take_running(page: Page, url: str, folder: Path, spark_ui: str | None) -> None:
    """Take the pictures of a running system. Those of a run and of a table are left out if there is none.

    Args:
        page: a browser page.
        url: URL of Dagster's webserver.
        folder: folder for the pictures.
        spark_ui: URL of Spark's UI; None for no picture of it.
    """
    data = requests.post(f"{url}/graphql", json={"query": _NEWEST}, timeout=30).json()["data"]
    runs = [run["runId"] for run in data["runsOrError"]["results"]]
    tables = [node["assetKey"]["path"] for node in data["assetNodes"] if node["groupName"] == "tables"]
    page.set_viewport_size({"width": 2400, "height": 1020})
    expanded = ",".join(f"global@global:{group}" for group in GROUPS)
    page.goto(f"{url}/asset-groups?expanded={expanded}")
    page.get_by_text("Hide navigation").click()
    page.get_by_label("panel_show_right").click()  # hide the list of assets, so that the graph is larger
    take(page, f"{url}/asset-groups?expanded={expanded}", "checkpoint", folder / "lineage.png")
    if runs:
        page.goto(f"{url}/runs/{runs[0]}")
        page.get_by_text("RUN_SUCCESS").first.wait_for()
        page.locator("button:has([aria-label=expand_arrows])").first.click()  # show all steps instead of the log
        take(page, f"{url}/runs/{runs[0]}", _HAS_SUCCEEDED, folder / "run.png")  # `take` reloads the page
        page.set_viewport_size({"width": 1800, "height": 1100})
        take(page, f"{url}/assets/checkpoint?view=events", "spark/application", folder / "materialization.png")
    if spark_ui is not None:
        page.set_viewport_size({"width": 1500, "height": 800})
        page.goto(f"{spark_ui}/jobs/")
        page.get_by_text("Completed Jobs (").first.wait_for()
        page.screenshot(path=folder / "spark.png")
        page.set_viewport_size({"width": 2400, "height": 1020})
    if tables:
        path = "/".join(tables[0])
        take(page, f"{url}/assets/{path}?view=overview", tables[0][-1], folder / "table.png")


def take_all(scene: Scene, into: Path) -> None:
    """Push the data of six days to a system without data, and take the pictures of it.

    Args:
        scene: the running system.
        into: folder for the pictures.
    """
    scene.register()
    for days_back in reversed(range(DAYS)):
        scene.push_day(days_back)
    scene.flush()
    with browser_page() as page:
        take_backfills(scene, page, into)
        take_failed_check(scene, page, into)
        take_replay(scene, page, into)


def take_backfills(scene: Scene, page: Page, into: Path) -> None:
    """Take the lineage, and a backfill of each kind of asset.

    Args:
        scene: the running system.
        page: a browser page.
        into: folder for the pictures.
    """
    scene.wait_for_checks(*TABLES)
    page.set_viewport_size({"width": 2400, "height": 1020})
    expanded = ",".join(f"global@global:{group}" for group in GROUPS)
    wanted = quote(" or ".join(f'group:"{group}"' for group in GROUPS), safe="")  # without upkeep and erasure
    lineage = f"{scene.dagster}/asset-groups~{wanted}?expanded={expanded}"
    page.goto(lineage)
    page.get_by_text("Hide navigation").click()
    take(page, lineage, "checkpoint", into / "house.png")
    page.set_viewport_size({"width": 1800, "height": 430})
    for name, assets in BACKFILLS.items():
        backfill = scene.backfill(*assets)
        take(page, f"{scene.dagster}/runs/b/{backfill}", "Succeeded", into / f"backfill-{name}.png")


def take_failed_check(scene: Scene, page: Page, into: Path) -> None:
    """Insert a row a second time into a state table, and take the run that the check stops, and the check's page.

    Nothing is pushed to that table afterwards, because a merge of so small a table would repair it.

    Args:
        scene: the running system.
        page: a browser page.
        into: folder for the pictures.
    """
    page.set_viewport_size({"width": 1800, "height": 800})
    scene.duplicate_row()
    scene.push(0, [("flights", "1-1", {"delay": 99})])
    failed = scene.flush()
    page.goto(f"{scene.dagster}/runs/{failed}")
    page.get_by_text("RUN_FAILURE").first.wait_for()
    page.locator("button:has([aria-label=expand_arrows])").first.click()  # show all steps instead of the log
    take(page, f"{scene.dagster}/runs/{failed}", _HAS_ERRORED, into / "failed-run.png")  # `take` reloads the page
    scene.wait_for_checks("planes")
    detail = f"{scene.dagster}/assets/tables/planes?view=checks&checkDetail=row_once"
    take(page, detail, "1 found:", into / "failed-check.png")


def take_replay(scene: Scene, page: Page, into: Path) -> None:
    """Register a connector, and take a backfill of its tables.

    Args:
        scene: the running system.
        page: a browser page.
        into: folder for the pictures.
    """
    page.set_viewport_size({"width": 1800, "height": 430})
    with scene.polled_connector() as assets:
        backfill = scene.backfill(*assets)
        take(page, f"{scene.dagster}/runs/b/{backfill}", "Succeeded", into / "backfill-ingest.png")


if __name__ == "__main__":
    main()
