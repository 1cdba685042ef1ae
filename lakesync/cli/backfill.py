"""`lakesync backfill`: days of assets made again, by Dagster."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.ending import ExitCode
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Data, Json, settings

app = command_app()

_DAY = "%Y-%m-%d"
_LOOK_SECONDS = 1.0


@app.command(
    epilog=examples(
        ("lakesync backfill", "which assets there are"),
        ("lakesync backfill tables/todos --from 2026-11-01 --to 2026-11-07 --wait 600", "a week of one table"),
        ("lakesync backfill deltas tables/todos --from 2026-11-20 --dry-run", "which days that would be"),
    )
)
def backfill(
    assets: Annotated[list[str] | None, typer.Argument(metavar="ASSET...", help="None: list them.")] = None,
    first: Annotated[
        datetime | None, typer.Option("--from", formats=[_DAY], help="The first day of arrival (UTC).")
    ] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=[_DAY], help="The last day; today.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end; 0: do not.", min=0)] = 0.0,
    dagster: Annotated[str | None, typer.Option("--dagster-url", help="Dagster's address.", show_default=False)] = None,
    data: Data = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which days.")] = False,
    as_json: Json = False,
) -> None:
    """Make days of an asset again, in one run.

    Any day may be made again, in any order: the result is the same. With --wait the exit code says how it ended.
    """
    from lakesync.cli.pipeline import ENDED, GOOD, Dagster, dagster_url
    from lakesync.exceptions import ConfigurationError, ValidationError

    url = dagster or dagster_url(settings(data))
    if url is None:
        raise ConfigurationError(
            "where is Dagster? Give --dagster-url, set LAKESYNC_DAGSTER_URL, or name the folder of a `lakesync up`"
        )
    pipeline = Dagster(url)
    known = pipeline.assets()
    if not assets:
        rows = (
            {"asset": name, "group": node["groupName"], "partitioned": node["isPartitioned"]}
            for name, node in sorted(known.items())
        )
        output.records(rows, as_json=as_json, columns=("asset", "group", "partitioned=by day"))
        return
    for asset in assets:
        if asset not in known:
            raise ValidationError(f"there is no asset {asset!r}; `lakesync backfill` lists them")
        if not known[asset]["isPartitioned"]:
            raise ValidationError(f"asset {asset!r} has no days: it is made anew by each flush; `lakesync flush`")
    if first is None:
        raise typer.BadParameter("from which day? Give --from YYYY-MM-DD")
    lowest, highest = first.strftime(_DAY), last.strftime(_DAY) if last else "9999-12-31"
    days = [day for day in pipeline.days(assets[0]) if lowest <= day <= highest]
    if not days:
        raise ValidationError(f"asset {assets[0]!r} has no day from {lowest} to {highest}")
    if dry_run:
        output.records(({"day": day} for day in days), as_json=as_json)
        return
    started = pipeline.backfill(assets, days, f"lakesync backfill {' '.join(assets)}")
    told = {"backfillId": started, "assets": assets, "days": len(days), "status": "REQUESTED"}
    output.note(f"{url}/runs/b/{started}")
    deadline = time.monotonic() + wait
    with output.working("making them again"):
        while told["status"] not in ENDED and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            found = pipeline.backfill_status(started)
            told |= {"status": found["status"], "runs": {run["runId"]: run["status"] for run in found["runs"]}}
    output.facts(told, as_json=as_json)
    if wait and told["status"] not in ENDED:
        output.note(f"it has not ended after {wait:g} s, and goes on")
    if wait and told["status"] not in GOOD:
        raise typer.Exit(ExitCode.FAILED)
