"""Takes the pictures for `scripts/dagster-pictures`: house.png, backfill-….png, failed-run.png and failed-check.png."""

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
"""What moves beyond the lake."""
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
    """Play the scene and take a picture wherever there is something to see."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="where `lakesync up` runs or is to run; a new folder unless told")
    parser.add_argument("--into", type=Path, default=Path("docs/img"))
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "lakesync.toml"
        since = datetime.now(UTC).date() - timedelta(days=DAYS)
        settings.write_text(SETTINGS.format(folder=scratch, since=since), "utf-8")
        with running(options.data or Path(scratch) / "data", LAKESYNC_CONFIG=str(settings)) as scene:
            play(scene, options.into)


def play(scene: Scene, into: Path) -> None:
    """Six days, a backfill of five, a row that is there twice, and a connector."""
    scene.register()
    for back in reversed(range(DAYS)):
        scene.push_day(back)
    scene.flush()
    with browser_page() as page:
        all_is_well(scene, page, into)
        a_row_is_there_twice(scene, page, into)
        a_connector_is_replayed(scene, page, into)


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a real browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


def all_is_well(scene: Scene, page: Page, into: Path) -> None:
    """The lineage, and a backfill of each asset."""
    scene.checked(*TABLES)
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


def a_row_is_there_twice(scene: Scene, page: Page, into: Path) -> None:
    """The run that a check ended, and the check's page.

    Nothing is pushed to the table with the planted row, as a merge of so small a table would have mended it.
    """
    page.set_viewport_size({"width": 1800, "height": 800})
    scene.plant()
    scene.push(0, [("flights", "1-1", {"delay": 99})])
    failed = scene.flush()
    page.goto(f"{scene.dagster}/runs/{failed}")
    page.get_by_text("RUN_FAILURE").first.wait_for()
    page.locator("button:has([aria-label=expand_arrows])").first.click()  # all steps rather than the log
    take(page, f"{scene.dagster}/runs/{failed}", "Errored (", into / "failed-run.png")  # drawn anew, with room
    scene.checked("planes")
    detail = f"{scene.dagster}/assets/tables/planes?view=checks&checkDetail=row_once"
    take(page, detail, "1 found:", into / "failed-check.png")


def a_connector_is_replayed(scene: Scene, page: Page, into: Path) -> None:
    """A backfill of a connector's tables."""
    page.set_viewport_size({"width": 1800, "height": 430})
    with scene.polled() as assets:
        backfill = scene.backfill(*assets)
        take(page, f"{scene.dagster}/runs/b/{backfill}", "Succeeded", into / "backfill-ingest.png")


if __name__ == "__main__":
    main()
