"""Takes pictures of the pages of a running Dagster, and of Spark's UI. `scripts/screenshot-lineage` runs it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import requests
from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Page

GROUPS = ("clients", "gateway", "flush", "tables", "checkpoint_snapshots", "checkpoint")
"""The asset groups in the pictures of the lineage."""
PATIENCE_MS = 300_000
"""Longest time to wait for something on a page."""
_NEWEST = """{
  runsOrError(limit: 1, filter: {statuses: [SUCCESS], pipelineName: "flush"}) { ... on Runs { results { runId } } }
  assetNodes { assetKey { path } groupName }
}"""


def main(url: str, folder: Path, spark_ui: str | None) -> None:
    """Take the pictures. Those of a run and of a table are left out if there is none.

    Args:
        url: URL of Dagster's webserver.
        folder: folder for the pictures.
        spark_ui: URL of Spark's UI; None for no picture of it.
    """
    data = requests.post(f"{url}/graphql", json={"query": _NEWEST}, timeout=30).json()["data"]
    runs = [run["runId"] for run in data["runsOrError"]["results"]]
    tables = [node["assetKey"]["path"] for node in data["assetNodes"] if node["groupName"] == "tables"]
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": 2400, "height": 1020})
        page.set_default_timeout(PATIENCE_MS)
        expanded = ",".join(f"global@global:{group}" for group in GROUPS)
        page.goto(f"{url}/asset-groups?expanded={expanded}")
        page.get_by_text("Hide navigation").click()
        page.get_by_label("panel_show_right").click()  # hide the list of assets, so that the graph is larger
        take(page, f"{url}/asset-groups?expanded={expanded}", "checkpoint", folder / "lineage.png")
        if runs:
            page.goto(f"{url}/runs/{runs[0]}")
            page.get_by_text("RUN_SUCCESS").first.wait_for()
            page.locator("button:has([aria-label=expand_arrows])").first.click()  # show all steps instead of the log
            take(page, f"{url}/runs/{runs[0]}", "Succeeded (", folder / "run.png")  # `take` reloads the page
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
        browser.close()


def take(page: Page, url: str, text: str, file: Path) -> None:
    """Open a page, wait until it has loaded and shows a text, and save a picture of it.

    Args:
        page: a browser page.
        url: URL of the page.
        text: the text that must be shown.
        file: the picture's file.
    """
    page.goto(url)
    page.get_by_text(text).first.wait_for()
    expect(page.get_by_text("Loading")).to_have_count(0, timeout=PATIENCE_MS)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)
    print(file)


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), Path(sys.argv[2]), sys.argv[3].rstrip("/") if sys.argv[3:] else None)
