"""`lakesync backfill`: partitions of assets run again, by Dagster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings

if TYPE_CHECKING:
    from lakesync.cli.dagster_client import Dagster

app = command_app()

_DAY = "%Y-%m-%d"
_LOOK_SECONDS = 1.0
_NOT_SHOWN = ("run", "seconds", "engine", "dagster/uri", "gateways", "lag_seconds")
"""Parts of a report that only --json prints, beside Spark's figures."""


@app.command(
    epilog=examples(
        ("lakesync backfill", "list the assets"),
        ("lakesync backfill tables/todos --from 2026-11-01 --to 2026-11-07 --wait 600", "a week of one table"),
        ("lakesync backfill deltas tables/todos --from 2026-11-20 --dry-run", "list the partitions"),
        ("lakesync backfill migrations/away --from 2026-01-31 --to 2026-01-31 --partition orders", "a day of a table"),
        ("lakesync backfill tables/todos --from 2026-11-01 --rebuild --wait 600", "from nothing"),
    )
)
def backfill(
    assets: Annotated[list[str] | None, typer.Argument(metavar="ASSET...", help="None: list them.")] = None,
    first: Annotated[
        datetime | None, typer.Option("--from", formats=[_DAY], help="The first day of arrival (UTC).")
    ] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=[_DAY], help="The last day; today.")] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(help="Only this partition, table or gateway; may be repeated.", show_default=False),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end; 0: do not.", min=0)] = 0.0,
    dagster: Annotated[str | None, typer.Option("--dagster-url", help="Dagster's address.", show_default=False)] = None,
    data: Data = None,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete what is there, and make it again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the partitions.")] = False,
    as_json: Json = False,
) -> None:
    """Run partitions of assets again: days, and tables or gateways.

    Any partition may run again, in any order: the result is the same. With --wait, prints what each partition reports
    and exits with 1 if the backfill failed.
    """
    from lakesync.cli.dagster_client import Dagster, dagster_url
    from lakesync.model.errors import ConfigurationError

    url = dagster or dagster_url(settings(data))
    if url is None:
        raise ConfigurationError(
            "where is Dagster? Give --dagster-url, set LAKESYNC_DAGSTER_URL, or name the folder of a `lakesync up`"
        )
    pipeline = Dagster(url)
    if not assets:
        rows = (
            {"asset": name, "group": node["groupName"], "partitioned": node["isPartitioned"]}
            for name, node in sorted(pipeline.assets().items())
        )
        output.records(rows, as_json=as_json, columns=("asset", "group", "partitioned"))
        return
    days = (first.strftime(_DAY) if first else None, last.strftime(_DAY) if last else None)
    chosen = _chosen(pipeline, assets, days, partition or ())
    if dry_run:
        rows = ({"asset": asset, "partition": key} for keys, group in chosen.items() for asset in group for key in keys)
        output.records(rows, as_json=as_json)
        return
    deadline, is_good = time.monotonic() + wait, True
    started = {
        pipeline.backfill(group, list(keys), f"lakesync backfill {' '.join(group)}", rebuild=rebuild): (keys, group)
        for keys, group in chosen.items()
    }
    for identity, (keys, group) in started.items():
        output.note(f"{url}/runs/b/{identity}")
        is_good &= _follow(pipeline, identity, group, list(keys), deadline, wait, as_json=as_json)
    if wait and not is_good:
        raise typer.Exit(ExitCode.FAILED)


def _chosen(
    pipeline: Dagster, assets: Sequence[str], days: tuple[str | None, str | None], wanted: Sequence[str]
) -> dict[tuple[str, ...], list[str]]:
    """Partition keys → the assets that are run for them: assets of other partitions are another backfill.

    Raises:
        ValidationError: an asset is unknown, has no partitions, or none of them is chosen.
        typer.BadParameter: an asset is partitioned by day, and no day is given.
    """
    from lakesync.model.errors import ValidationError

    known = pipeline.assets()
    chosen: dict[tuple[str, ...], list[str]] = {}
    for asset in assets:
        if asset not in known:
            raise ValidationError(f"there is no asset {asset!r}; `lakesync backfill` lists them")
        if not known[asset]["isPartitioned"]:
            raise ValidationError(f"asset {asset!r} has no partitions: each flush makes it again; `lakesync flush`")
        partitions = pipeline.partitions(asset)
        if days[0] is None and not wanted and any(each.day is not None for each in partitions):
            raise typer.BadParameter("from which day? Give --from YYYY-MM-DD")
        keys = tuple(each.key for each in partitions if each.is_chosen(*days, wanted))
        if not keys:
            span = f" from {days[0] or 'the first day'} to {days[1] or 'today'}" if any(days) else ""
            named = f" of {', '.join(wanted)}" if wanted else ""
            raise ValidationError(f"asset {asset!r} has no partition{named}{span}; --dry-run lists partitions")
        chosen.setdefault(keys, []).append(asset)
    return chosen


def _follow(
    pipeline: Dagster, identity: str, assets: list[str], keys: list[str], deadline: float, wait: float, *, as_json: bool
) -> bool:
    """Wait for a backfill, print it and what each partition reported; whether it succeeded."""
    from lakesync.cli.dagster_client import ENDED, GOOD

    told: dict[str, Any] = {"backfillId": identity, "assets": assets, "partitions": len(keys), "status": "REQUESTED"}
    with output.working("running the backfill"):
        while told["status"] not in ENDED and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
            found = pipeline.backfill_status(identity)
            told |= {"status": found["status"], "runs": {run["runId"]: run["status"] for run in found["runs"]}}
    output.facts(told, as_json=as_json)
    if not wait:
        return True
    if told["status"] not in ENDED:
        output.note(f"it has not ended after {wait:g} s, and goes on")
    for asset in assets:
        made = pipeline.made(asset, keys, told.get("runs", {}))
        for key in keys:
            if as_json:
                output.record({"asset": asset, "partition": key, "report": made.get(key)})
            else:
                print(_line(asset, key, made.get(key)))
    return told["status"] in GOOD


def _line(asset: str, key: str, report: Mapping[str, Any] | None) -> str:
    """A partition's report in words."""
    if report is None:
        return f"{asset} {key}: not made"
    plain = {name: value for name, value in report.items() if name not in _NOT_SHOWN and not name.startswith("spark/")}
    shown = ", ".join(f"{name.removeprefix('dagster/')} {output.cell(value)}" for name, value in plain.items())
    return f"{asset} {key}: {shown or 'made'}"
