"""`lakesync flush` and `lakesync backfill`: have the pipeline run now, and wait for the end if they are asked to.

A gateway is one app's stream of deltas (changes of rows). A flush moves them from the gateway's log to the lake: to the
history of all deltas, then into the state tables (current rows) and the checkpoint (the snapshot from which new clients
start). `flush` calls the gateway, which only records the request. The pipeline's flush sensor sees it; without a
pipeline the gateway flushes by itself. A parameter `options: ConnectionOptions` adds the options that choose gateway
and token, from `--url` to `--data`. In the path of a request, `{gateway}` is the gateway's id.

`backfill` runs partitions of Dagster assets again. It calls Dagster, which runs the pipeline. An *asset* is something
that the pipeline makes, such as a table. Most have a *partition* for each UTC day of arrival, the gateway's timestamp
of a commit. To *materialise* a partition is Dagster's word for running it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.commands import ConnectionOptions, Data, Json, command_app, examples, load_settings
from lakesync.cli.exit_codes import ExitCode
from lakesync.model.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.cli.dagster_client import DagsterClient

flush_app, backfill_app = command_app(), command_app()

_FLUSH_POLL_SECONDS = 0.5
"""Seconds between two requests of `flush`: the gateway may respond at once."""
_MAX_FLUSH_WAIT_SECONDS = 20.0
"""Seconds for which the gateway may hold one request of `flush`, at most."""

_DAY = "%Y-%m-%d"
"""The form of the options `--from` and `--to`."""
_POLL_SECONDS = 1.0
"""Seconds between two requests for a backfill's status."""
_JSON_ONLY = ("run", "seconds", "engine", "dagster/uri", "gateways", "lag_seconds")
"""Metadata of a materialisation that only --json prints, beside Spark's metrics."""


@flush_app.command(
    epilog=examples(
        ("lakesync flush --gateway shop", "wait until the lake has everything"),
        ("lakesync flush --wait 0", "request it without waiting"),
    )
)
def flush(
    wait: Annotated[float, typer.Option(help="Seconds to wait for the lake; 0: do not wait.", min=0)] = 120.0,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Flush the unflushed deltas to the lake now.

    Exits with 1 if the lake does not have everything in time; the flush continues.
    """
    remote = options.connect()
    deadline = time.monotonic() + wait
    before = _metrics(remote)
    # the response's own `flushed` and `merged` are about the time of its request, and clients go on pushing
    response = remote.post("/admin/flush/{gateway}", wait=round(min(wait, _MAX_FLUSH_WAIT_SECONDS), 1) or None)
    done = False
    if wait:
        response |= _progress_since(before, _metrics(remote))
        done = _is_done(response)
        if not response["flushed"]:
            output.note(
                f"waiting up to {wait:g} s; a flush needs a running `lakesync up`, or a gateway with --flush-to"
            )
        with output.spinner("flushing"):
            while not done and time.monotonic() < deadline:
                time.sleep(_FLUSH_POLL_SECONDS)
                response |= _progress_since(before, _metrics(remote))
                done = _is_done(response)
    if as_json:
        output.print_json(response)
    elif not wait:
        print("requested")
    elif done:
        snapshot = response.get("snapshotId")
        print(f"all deltas are in the lake{f', snapshot {snapshot}' if snapshot else ''}")
    elif response.get("flushed"):
        output.note(
            f"all deltas are in the lake's history, but after {wait:g} s not in all state tables and the checkpoint; "
            "`lakesync status` shows what is behind"
        )
    else:
        output.note(f"some deltas are not in the lake after {wait:g} s; `lakesync status` shows the backlog")
    if wait and not done:
        raise typer.Exit(ExitCode.FAILED)


def _metrics(remote: GatewayConnection) -> dict[str, Any]:
    """Return the gateway's metrics without its clients."""
    metrics: dict[str, Any] = remote.get("/admin/metrics/{gateway}", clients=0)
    return metrics


def _progress_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether the lake has everything that was unflushed at an earlier time, as a flush's response says it.

    Args:
        before: the gateway's metrics at that time.
        now: its metrics now.

    Returns:
        `flushed`: whether the history has it; with a pipeline also `merged`: whether tables and checkpoint have it.
    """
    flushed_seq = {shard["shard"]: shard["flushedSeq"] for shard in now["shards"]}
    flushed = all(flushed_seq.get(shard["shard"], 0) >= shard["lastSeq"] for shard in before["shards"])
    if now["pipeline"] is None:
        return {"flushed": flushed}
    arrival = int(now["checkpoint"]["arrivalHlc"]) if now["checkpoint"] is not None else 0
    merged = flushed and all(arrival >= int(shard["lastArrivalHlc"]) for shard in before["shards"])
    return {"flushed": flushed, "merged": merged}


def _is_done(response: Mapping[str, Any]) -> bool:
    """Return whether everything is in the lake; `merged` is absent without a pipeline."""
    return bool(response["flushed"] and response.get("merged", True))


@backfill_app.command(
    epilog=examples(
        ("lakesync backfill", "list the assets"),
        ("lakesync backfill tables/todos --from 2026-11-01 --to 2026-11-07 --wait 600", "a week of one table"),
        ("lakesync backfill deltas tables/todos --from 2026-11-20 --dry-run", "list the partitions"),
        (
            "lakesync backfill migrations/away --from 2026-01-31 --to 2026-01-31 --partition orders",
            "one day of one table",
        ),
        ("lakesync backfill tables/todos --from 2026-11-01 --rebuild --wait 600", "from its whole history"),
        ("lakesync backfill destinations/main/pg --from 2026-11-01 --rebuild", "write lost or altered rows again"),
    )
)
def backfill(
    assets: Annotated[
        list[str] | None, typer.Argument(metavar="ASSET...", help="Assets to run; default: list the assets.")
    ] = None,
    first: Annotated[
        datetime | None, typer.Option("--from", formats=[_DAY], help="First day of arrival (UTC).")
    ] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=[_DAY], help="Last day; default: today.")] = None,
    partition: Annotated[
        list[str] | None, typer.Option(help="Run only this partition, table or gateway; may be repeated.")
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end; 0: do not wait.", min=0)] = 0.0,
    dagster: Annotated[
        str | None,
        typer.Option("--dagster-url", help="URL of Dagster's web UI; default: that of a running `lakesync up`."),
    ] = None,
    data: Data = None,
    *,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Write a table again from its history, or days of a destination from the lake."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the partitions without running them.")] = False,
    as_json: Json = False,
) -> None:
    """Run partitions of Dagster assets again.

    Partitions may run again in any order with the same result. With --wait, prints the report of each partition and
    exits with 1 if the backfill failed.
    """
    from lakesync.cli.dagster_client import DagsterClient, dagster_url

    url = dagster or dagster_url(load_settings(data))
    if url is None:
        raise ConfigurationError(
            "Dagster's URL is not known; give --dagster-url, set LAKESYNC_DAGSTER_URL, or name the data folder of a "
            "`lakesync up` with --data"
        )
    client = DagsterClient(url)
    if not assets:
        rows = (
            {"asset": name, "group": node["groupName"], "partitioned": node["isPartitioned"]}
            for name, node in sorted(client.assets().items())
        )
        output.print_rows(rows, as_json=as_json, columns=("asset", "group", "partitioned"))
        return
    first_day, last_day = (day.strftime(_DAY) if day is not None else None for day in (first, last))
    backfills = _choose_partitions(client, assets, first_day, last_day, partition or ())
    if dry_run:
        rows = ({"asset": asset, "partition": key} for each in backfills for asset in each.assets for key in each.keys)
        output.print_rows(rows, as_json=as_json)
        return
    deadline = time.monotonic() + wait
    launched: dict[str, _Backfill] = {}  # all of them, before the first is waited for
    for each in backfills:
        title = f"lakesync backfill {' '.join(each.assets)}"
        backfill_id = client.backfill(each.assets, each.keys, title, rebuild=rebuild)
        output.note(f"{url}/runs/b/{backfill_id}")
        launched[backfill_id] = each
    succeeded = [_follow(client, name, each, deadline, wait, as_json=as_json) for name, each in launched.items()]
    if wait and not all(succeeded):
        raise typer.Exit(ExitCode.FAILED)


class _Backfill(NamedTuple):
    """What one backfill of Dagster runs: the same partitions of some assets."""

    assets: list[str]
    """The assets' keys."""
    keys: list[str]
    """The partition keys."""


def _choose_partitions(
    client: DagsterClient,
    assets: Sequence[str],
    first_day: str | None,
    last_day: str | None,
    wanted: Sequence[str],
) -> list[_Backfill]:
    """Choose the partitions to run. Assets with different partitions need separate backfills.

    Args:
        client: the Dagster client.
        assets: the assets' keys.
        first_day: `YYYY-MM-DD`; None: no limit.
        last_day: `YYYY-MM-DD`; None: no limit.
        wanted: partitions, tables or gateways; empty: all.

    Raises:
        ValidationError: an asset is unknown, has no partitions, or none of them is chosen.
        typer.BadParameter: an asset is partitioned by day, and neither a first day nor a partition is chosen.
    """
    nodes = client.assets()
    assets_by_keys: dict[tuple[str, ...], list[str]] = {}
    for asset in dict.fromkeys(assets):
        if asset not in nodes:
            raise ValidationError(f"there is no asset {asset!r}; `lakesync backfill` lists the assets")
        if not nodes[asset]["isPartitioned"]:
            raise ValidationError(f"asset {asset!r} has no partitions; it is updated by each `lakesync flush`")
        partitions = client.partitions(asset)
        if first_day is None and not wanted and any(each.day is not None for each in partitions):
            raise typer.BadParameter(f"asset {asset!r} is partitioned by day; give --from YYYY-MM-DD")
        keys = tuple(each.key for each in partitions if each.matches(first_day, last_day, wanted))
        if not keys:
            span = f" from {first_day or 'the first day'} to {last_day or 'today'}" if first_day or last_day else ""
            named = f" of {', '.join(wanted)}" if wanted else ""
            raise ValidationError(f"asset {asset!r} has no partition{named}{span}; list partitions with --dry-run")
        assets_by_keys.setdefault(keys, []).append(asset)
    return [_Backfill(group, list(keys)) for keys, group in assets_by_keys.items()]


def _follow(
    client: DagsterClient,
    backfill_id: str,
    launched: _Backfill,
    deadline: float,
    wait: float,
    *,
    as_json: bool,
) -> bool:
    """Wait for a backfill, and print its status and the report of each partition.

    Args:
        client: the Dagster client.
        backfill_id: the id of the backfill.
        launched: what it runs.
        deadline: when to stop waiting, on the monotonic clock.
        wait: the value of `--wait` in seconds, for messages; 0: do not wait, and print only the status.
        as_json: whether to print JSON.

    Returns:
        Whether the backfill succeeded; True if `wait` is 0.
    """
    from lakesync.cli.dagster_client import FINISHED, SUCCEEDED

    summary: dict[str, Any] = {
        "backfillId": backfill_id,
        "assets": launched.assets,
        "partitions": len(launched.keys),
        "status": "REQUESTED",
    }
    with output.spinner("running the backfill"):
        while wait:  # asks at least once, because earlier backfills may have used up the time
            current = client.backfill_status(backfill_id)
            summary |= {"status": current["status"], "runs": {run["runId"]: run["status"] for run in current["runs"]}}
            if summary["status"] in FINISHED or time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
    output.print_fields(summary, as_json=as_json)
    if not wait:
        return True
    if summary["status"] not in FINISHED:
        output.note(f"the backfill has not ended after {wait:g} s; it continues")
    for asset in launched.assets:
        reports = client.materialisations(asset, launched.keys, summary.get("runs", {}))
        for key in launched.keys:
            report = reports.get(key)
            fields = {"asset": asset, "partition": key, "report": report}
            output.print_line(_partition_line(asset, key, report), fields, as_json=as_json)
    return summary["status"] in SUCCEEDED


def _partition_line(asset: str, key: str, report: Mapping[str, Any] | None) -> str:
    """Return the line that reports a partition; `report` is None if the backfill did not materialise it."""
    if report is None:
        return f"{asset} {key}: not materialised"
    plain = {name: value for name, value in report.items() if name not in _JSON_ONLY and not name.startswith("spark/")}
    text = ", ".join(f"{name.removeprefix('dagster/')} {output.cell(value)}" for name, value in plain.items())
    return f"{asset} {key}: {text or 'materialised'}"
