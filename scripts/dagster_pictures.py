"""Takes pictures of Dagster's pages for docs/dagster.md. `scripts/dagster-pictures` runs it.

The pictures are house.png (the lineage), backfill-….png (a backfill of each kind of asset), failed-run.png and
failed-check.png (a row that a state table has twice).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from dagster_scene import DAYS, TABLES, Scene, running
from playwright.sync_api import sync_playwright
from screenshots import GROUPS, PATIENCE_MS, take

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


def main() -> None:
    """Start `lakesync up` if it does not run, create the data, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="data folder of `lakesync up`; default: a new temporary folder")
    parser.add_argument("--into", type=Path, default=Path("docs/img"), help="folder for the pictures")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "lakesync.toml"
        since = datetime.now(UTC).date() - timedelta(days=DAYS)
        settings.write_text(SETTINGS.format(folder=scratch, since=since), "utf-8")
        with running(options.data or Path(scratch) / "data", LAKESYNC_CONFIG=str(settings)) as scene:
            take_all(scene, options.into)


def take_all(scene: Scene, into: Path) -> None:
    """Push the data of six days, and take all pictures.

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


@contextmanager
def browser_page() -> Iterator[Page]:
    """Yield a page of a real browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


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
    take(page, f"{scene.dagster}/runs/{failed}", "Errored (", into / "failed-run.png")  # `take` reloads the page
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
