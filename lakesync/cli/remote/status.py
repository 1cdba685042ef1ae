"""`lakesync status`: how far gateway, clients, lake and pipeline are, at a glance."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url
from lakesync.cli.pipeline_health import part_name, troubles
from lakesync.cli.remote.clients import COLUMNS, in_words, standing

if TYPE_CHECKING:
    from lakesync.cli.connection import Remote
    from lakesync.config import Config

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync status", "of the only declared gateway, or LAKESYNC_REMOTE_GATEWAY's"),
        ("lakesync status --gateway shop --json | jq .oldestUnflushedSeconds", "for a monitor"),
    )
)
def status(
    clients: Annotated[int, typer.Option(help="Most clients to show.", min=0, max=1000)] = 10,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show at a glance how far gateway, clients, lake and pipeline are.

    A client lacks a row: its line has the age of the oldest change that it was not sent; `lakesync explain` says why.
    Exit code 6: the gateway answered, and lake or pipeline, which are configured here, did not.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.errors import LakeSyncError

    with output.working("asking"):
        remote = connect(url, gateway, token_file, data)
        told = remote.get("/admin/metrics/{gateway}", clients=clients, tables="true")
        ready = _ready(remote)
        unanswered: list[str] = []
        lake, runs = None, None
        try:
            lake = _lake(remote.config, remote.gateway)
        except LakeSyncError as error:
            unanswered.append(str(error))
        try:
            runs = _runs(remote.config)
        except LakeSyncError as error:
            unanswered.append(str(error))
    whole = _whole(remote, told, ready, lake, runs)
    if as_json:
        output.record({**whole, "unanswered": unanswered})
    else:
        _show(whole)
    for each in unanswered:
        exit_codes.unanswered(each, as_json=as_json)
    if unanswered:
        raise typer.Exit(exit_codes.ExitCode.PARTIAL)


def _whole(
    remote: Remote,
    told: dict[str, Any],
    ready: str,
    lake: dict[str, int | None] | None,
    runs: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    now = time.time() * 1000
    newest = int(told["lastArrivalHlc"])
    waiting = {each["table"]: each for each in told["tables"] or ()}
    names = sorted({*waiting, *(lake or {})})
    return {
        "gateway": remote.gateway,
        "url": remote.url,
        "ready": ready,
        "newestMs": newest >> 16 or None,
        "unflushedDeltas": told["logSize"],
        "unflushedBytes": told["byteSize"],
        "oldestUnflushedSeconds": None if told["oldestMs"] is None else round((now - told["oldestMs"]) / 1000, 1),
        "flushedMs": told["flushedMs"],
        "maxBackpressureBytes": told["maxBackpressureBytes"],
        "turnedAway": [each["shard"] for each in told["shards"] if each["byteSize"] > told["maxBackpressureBytes"]],
        "rulesVersion": told["rulesVersion"],
        "cut": told["cut"],
        "tables": [
            {
                "table": name,
                "waitingDeltas": waiting.get(name, {}).get("deltaCount", 0),
                "mergedMs": ((lake or {}).get(name) or 0) >> 16 or None,
            }
            for name in names
        ],
        "pipeline": told["pipeline"],
        "deadLetters": told["deadLetters"],
        "clients": [standing(each) for each in told["clients"]],
        "runs": runs,
    }


def _ready(remote: Remote) -> str:
    from lakesync.model.errors import LakeSyncError

    try:
        return str(remote.get("/ready")["status"])
    except LakeSyncError as error:
        return f"not ready: {error}"


def _lake(config: Config, gateway: str) -> dict[str, int | None] | None:
    """State table → the arrival up to which it is merged; None where no lake is at hand."""
    if find_spec("pyiceberg") is None:
        return None
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue, merge_marks

    if not may_have_catalogue(config):
        return None
    with LakeReader(config) as lake:
        mine = config.namespaces.of(gateway)
        tables = {name: lake.state_table(name) for name, (place, _) in lake.state_tables.items() if place == mine}
        return {name: merge_marks(table).get(gateway) for name, table in tables.items() if table is not None}


def _runs(config: Config) -> list[dict[str, Any]] | None:
    """The newest run of each job, newest first; None where no Dagster is configured."""
    from lakesync.cli.dagster_client import Dagster, dagster_url

    url = dagster_url(config)
    if url is None:
        return None
    return [
        {name: run[name] for name in ("runId", "jobName", "status", "creationTime", "startTime", "endTime")}
        for run in Dagster(url).last_runs()
    ]


def _show(whole: dict[str, Any]) -> None:
    output.facts(dict(_facts(whole)), as_json=False)
    if whole["runs"]:
        print()
        rows = (
            {
                "job": each["jobName"],
                "status": each["status"].lower(),
                "requested": output.moment(int(each["creationTime"] * 1000)),
                "ended": output.moment(int(each["endTime"] * 1000)) if each["endTime"] else None,
                "run": each["runId"],
            }
            for each in whole["runs"]
        )
        output.records(rows, as_json=False, columns=("job", "status=last run", "requested", "ended", "run"))
    if whole["tables"]:
        print()
        rows = ({**each, "mergedMs": output.moment(each["mergedMs"])} for each in whole["tables"])
        output.records(rows, as_json=False, columns=("table", "waitingDeltas=waiting", "mergedMs=merged up to"))
    print()
    output.records(
        map(in_words, whole["clients"]),
        as_json=False,
        columns=COLUMNS,
        none="no client has talked to this process of the gateway since it started",
    )


def _facts(whole: dict[str, Any]) -> Iterator[tuple[str, str]]:
    told, now = whole["pipeline"], time.time() * 1000
    for number, trouble in enumerate(troubles(told, now)):
        yield "pipeline" + " " * number, trouble  # the first line is what to look at first
    yield "gateway", f"{whole['gateway']} at {whole['url']}, {whole['ready']}"
    yield "newest commit", output.moment(whole["newestMs"]) or "none yet"
    deltas = whole["unflushedDeltas"]
    waits = f"{deltas:,} delta{'' if deltas == 1 else 's'}, {whole['unflushedBytes']:,} bytes"
    oldest = whole["oldestUnflushedSeconds"]
    yield "waits for lake", f"{waits}, the oldest for {output.ago(oldest)}" if oldest is not None else "nothing"
    if whole["turnedAway"]:
        shards = ", ".join(whole["turnedAway"])
        yield "pushes", f"turned away: more than {whole['maxBackpressureBytes']:,} bytes wait in {shards}"
    yield "last flush", output.moment(whole["flushedMs"]) or "none yet"
    cut = whole["cut"]
    if cut is None:
        yield "checkpoint", "none yet: new clients pull from 0"
    else:
        arrival = output.moment(int(cut["arrivalHlc"]) >> 16)
        stale = "" if cut["rulesVersion"] == whole["rulesVersion"] else ", older than the rules: not served"
        yield "checkpoint", f"as of {arrival}, {cut['rows']:,} rows, {cut['bytes']:,} bytes{stale}"
    yield "rules", f"version {whole['rulesVersion']}" if whole["rulesVersion"] else "none: every client sees every row"
    if told is not None:
        lags = [
            f"{part_name(part)} by {part['deltas']:,} deltas, for {output.ago((now - part['sinceMs']) / 1000)}"
            for part in told["behind"]
        ]
        yield "behind", "; ".join(lags) or "nothing"
    if whole["deadLetters"]:
        asides = [
            f"{each['count']:,} of {each['kind']} {each['name']}, since {output.moment(each['sinceMs'])}"
            for each in whole["deadLetters"]
        ]
        yield "set aside", f"{'; '.join(asides)}: see `lakesync dlq list`"
    if whole["runs"] == []:
        yield "last run", "none yet"
