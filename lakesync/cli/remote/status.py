"""`lakesync status` summarises the progress of gateway, clients, lake and pipeline; `lakesync clients` lists clients.

The numbers come from the gateway's `/admin/metrics`, from the lake's state tables (the current rows of synced tables),
and from Dagster, which runs the pipeline. A time named `…Ms` is in milliseconds since 1970. An arrival is the gateway's
timestamp of a commit; `wall_of` converts it to such a time. A *flush* moves changes of rows (deltas) from the gateway's
log to the lake. A *checkpoint* is the snapshot of all rows from which new clients start. *Dead letters* were set aside
so that other work could continue.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. A
gateway is one app's stream of changes; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lakesync.cli import exit_codes, output
from lakesync.cli.commands import ConnectionOptions, Json, command_app, examples
from lakesync.cli.output import count
from lakesync.cli.pipeline_health import job_title, lag_texts, problems
from lakesync.model.errors import LakeSyncError
from lakesync.model.hlc import wall_of

if TYPE_CHECKING:
    from lakesync.cli.connection import GatewayConnection
    from lakesync.config import Config

status_app, clients_app = command_app(), command_app()
T = TypeVar("T")


@status_app.command(
    epilog=examples(
        ("lakesync status", "the only declared gateway"),
        ("lakesync status --gateway shop --json | jq .oldestUnflushedSeconds", "for a monitor"),
    )
)
def status(
    clients: Annotated[int, typer.Option(help="Clients to show at most.", min=0, max=1000)] = 10,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Show the progress of gateway, clients, lake and pipeline.

    A client's lag is the age of the oldest change that it was not sent; `lakesync explain` says why. Exits with 6 if
    the gateway answers, but the configured lake or pipeline does not.
    """
    with output.spinner("collecting"):
        remote = options.connect()
        metrics = remote.get("/admin/metrics/{gateway}", clients=clients, tables="true")
        ready = _ready(remote)
        unanswered: list[str] = []
        merged_arrivals = _answer(lambda: _merged_arrivals(remote.config, remote.gateway), unanswered)
        dagster = _answer(lambda: _dagster_state(remote.config), unanswered)
    summary = _summary(remote, metrics, ready, merged_arrivals, dagster or {"runs": None, "switchedOff": None})
    if as_json:
        output.print_json({**summary, "unanswered": unanswered})
    else:
        _print_summary(summary)
    exit_codes.exit_if_incomplete(unanswered, as_json=as_json)


@clients_app.command(
    epilog=examples(
        ("lakesync clients --gateway shop", "all clients"),
        ("lakesync clients --json | jq 'select(.lagSeconds > 60)'", "clients with a lag of a minute"),
        (
            "lakesync clients --json | jq 'select(now * 1000 - (.offlineSinceMs // infinite) > 86400000)'",
            "clients that are offline for a day",
        ),
    )
)
def clients(
    limit: Annotated[int, typer.Option(help="Clients to show at most.", min=1, max=1000)] = 100,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """List the clients of a gateway, the largest lag first.

    The lag is the age of the oldest change by others that the client may see and was not sent. A client is offline
    since its last request, or since its WebSocket ended. Only clients that called this gateway process since it
    started are listed.
    """
    metrics = options.connect().get("/admin/metrics/{gateway}", clients=limit)
    _print_clients([_with_lag(each) for each in metrics["clients"]], as_json=as_json)


def _answer(read: Callable[[], T], unanswered: list[str]) -> T | None:
    """Return the result of a function. If it raises LakeSyncError, add the message to `unanswered` and return None."""
    try:
        return read()
    except LakeSyncError as error:
        unanswered.append(str(error))
        return None


def _summary(
    remote: GatewayConnection,
    metrics: dict[str, Any],
    ready: str,
    merged_arrivals: dict[str, int | None] | None,
    dagster: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the object that `--json` prints.

    Args:
        remote: the gateway.
        metrics: the gateway's `/admin/metrics`.
        ready: the result of `_ready`.
        merged_arrivals: the result of `_merged_arrivals`; None also if the lake does not answer.
        dagster: the result of `_dagster_state`, with None if Dagster does not answer.
    """
    now_ms = time.time() * 1000
    unflushed = {each["table"]: each for each in metrics["tables"] or ()}
    names = sorted({*unflushed, *(merged_arrivals or {})})
    oldest_ms = metrics["oldestMs"]
    return {
        "gateway": remote.gateway,
        "url": remote.url,
        "ready": ready,
        "newestMs": _time_of(int(metrics["lastArrivalHlc"])),
        "unflushedDeltas": metrics["logSize"],
        "unflushedBytes": metrics["byteSize"],
        "oldestUnflushedSeconds": None if oldest_ms is None else round((now_ms - oldest_ms) / 1000, 1),
        "flushedMs": metrics["flushedMs"],
        "maxBackpressureBytes": metrics["maxBackpressureBytes"],
        "rejectingShards": [
            each["shard"] for each in metrics["shards"] if each["byteSize"] > metrics["maxBackpressureBytes"]
        ],
        "rulesVersion": metrics["rulesVersion"],
        "checkpoint": metrics["checkpoint"],
        "tables": [
            {
                "table": name,
                "unflushedDeltas": unflushed.get(name, {}).get("deltaCount", 0),
                "mergedMs": _time_of((merged_arrivals or {}).get(name)),
            }
            for name in names
        ],
        "pipeline": metrics["pipeline"],
        "deadLetters": metrics["deadLetters"],
        "clients": [_with_lag(each) for each in metrics["clients"]],
        **dagster,
    }


def _time_of(arrival: int | None) -> int | None:
    """Return an arrival in milliseconds since 1970; None if the gateway has no push (0 or None)."""
    return wall_of(arrival) if arrival else None


def _ready(remote: GatewayConnection) -> str:
    """Return the status of the gateway's readiness check, or why it is not ready."""
    try:
        return str(remote.get("/ready")["status"])
    except LakeSyncError as error:
        return f"not ready: {error}"


def _merged_arrivals(config: Config, gateway: str) -> dict[str, int | None] | None:
    """Return state table → the arrival up to which the gateway's changes are merged into it; None if none is.

    The result is None, instead of a mapping, if the lake cannot be read from here: pyiceberg is not installed, or no
    catalogue is configured.

    Raises:
        LakeSyncError: the lake does not answer.
    """
    if find_spec("pyiceberg") is None:
        return None
    from lakesync.analysis.catalogue import LakeReader, may_have_catalogue, merge_marks

    if not may_have_catalogue(config):
        return None
    with LakeReader(config) as lake:
        namespace = config.namespaces.of(gateway)
        tables = {name: lake.state_table(name) for name, (space, _) in lake.state_tables.items() if space == namespace}
        return {name: merge_marks(table.properties).get(gateway) for name, table in tables.items() if table is not None}


def _dagster_state(config: Config) -> dict[str, Any] | None:
    """Return what Dagster knows of the pipeline; None if no Dagster is configured.

    Returns:
        `runs`: the newest run of each job, newest first, with its error if it failed; while it has not ended, with that
        of the run before it. `switchedOff`: the names of the sensors and schedules that are switched off.

    Raises:
        UnreachableError: Dagster does not answer.
    """
    from lakesync.cli.dagster_client import DagsterClient, dagster_url

    url = dagster_url(config)
    if url is None:
        return None
    client, fields = DagsterClient(url), ("runId", "jobName", "status", "creationTime", "startTime", "endTime")
    runs = [
        {
            **{name: run[name] for name in fields},
            "error": client.error_of(run["failedRunId"]) if run["failedRunId"] is not None else None,
        }
        for run in client.last_runs()
    ]
    return {"runs": runs, "switchedOff": client.switched_off()}


def _print_summary(summary: dict[str, Any]) -> None:
    """Print the summary as text: the fields, then tables of the last runs, the synced tables and the clients."""
    output.print_fields(dict(_fields(summary)), as_json=False)
    if summary["runs"]:
        print()
        rows = (
            {
                "job": job_title(each["jobName"]),
                "status": each["status"].lower(),
                "requested": output.utc_time(int(each["creationTime"] * 1000)),
                "ended": output.utc_time(int(each["endTime"] * 1000)) if each["endTime"] else None,
                "run": each["runId"],
            }
            for each in summary["runs"]
        )
        output.print_rows(rows, as_json=False, columns=("job", "status=last run", "requested", "ended", "run"))
        if errors := {job_title(each["jobName"]): each["error"] for each in summary["runs"] if each["error"]}:
            print()
            output.print_fields(errors, as_json=False)
    if summary["tables"]:
        print()
        rows = ({**each, "mergedMs": output.utc_time(each["mergedMs"])} for each in summary["tables"])
        output.print_rows(rows, as_json=False, columns=("table", "unflushedDeltas=unflushed", "mergedMs=merged up to"))
    print()
    _print_clients(summary["clients"], as_json=False)


def _fields(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines above the tables, each as a heading and a text."""
    report, now_ms = summary["pipeline"], time.time() * 1000
    pipeline_problems = problems(report, now_ms)
    if summary["switchedOff"]:
        names = ", ".join(summary["switchedOff"])
        pipeline_problems.append(f"switched off in Dagster: {names}; see its page Automation")
    for number, problem in enumerate(pipeline_problems):
        yield "pipeline" + " " * number, problem  # spaces, because headings are the keys of a mapping
    yield "gateway", f"{summary['gateway']} at {summary['url']}, {summary['ready']}"
    yield "newest commit", output.utc_time(summary["newestMs"]) or "none yet"
    unflushed = f"{count(summary['unflushedDeltas'], 'delta')}, {count(summary['unflushedBytes'], 'byte')}"
    oldest = summary["oldestUnflushedSeconds"]
    yield "unflushed", f"{unflushed}, the oldest for {output.duration(oldest)}" if oldest is not None else "nothing"
    if summary["rejectingShards"]:
        shards = ", ".join(summary["rejectingShards"])
        yield "pushes", f"rejected: more than {count(summary['maxBackpressureBytes'], 'unflushed byte')} in {shards}"
    yield "last flush", output.utc_time(summary["flushedMs"]) or "none yet"
    checkpoint = summary["checkpoint"]
    if checkpoint is None:
        yield "checkpoint", "none yet; new clients pull all rows"
    else:
        arrival = output.utc_time(wall_of(int(checkpoint["arrivalHlc"])))
        reason = checkpoint["notServedReason"]
        stale = "" if reason is None else f", not served: {reason}"
        size = f"{count(checkpoint['rows'], 'row')}, {count(checkpoint['bytes'], 'byte')}"
        yield "checkpoint", f"as of {arrival}, {size}{stale}"
    yield (
        "rules",
        f"version {summary['rulesVersion']}" if summary["rulesVersion"] else "none, every client sees every row",
    )
    if report is not None:
        yield "behind", "; ".join(lag_texts(report["behind"], now_ms)) or "nothing"
    if summary["deadLetters"]:
        letters = [
            f"{each['count']:,} of {each['kind']} {each['name']}, since {output.utc_time(each['sinceMs'])}"
            for each in summary["deadLetters"]
        ]
        yield "dead letters", f"{'; '.join(letters)}; see `lakesync dlq list`"
    if summary["runs"] == []:
        yield "last run", "none yet"


def _print_clients(clients: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print clients, as `_with_lag` returns them."""
    output.print_rows(
        clients if as_json else map(_client_row, clients),
        as_json=as_json,
        columns=("clientId=client", "lag", "state", "offlineSince=offline since", "pulled", "pushed"),
        if_empty="no client has called this gateway process since it started",
    )


def _with_lag(client: dict[str, Any]) -> dict[str, Any]:
    """Return a client's entry of `/admin/metrics` with `lagSeconds`, which is None if the lag is not known."""
    lag_ms = client.get("behindMs")  # missing in responses of older gateways
    return {**client, "lagSeconds": None if lag_ms is None else round(lag_ms / 1000, 3)}


def _client_row(client: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the table of clients for an entry that `_with_lag` returned."""
    state = "connected" if client["connected"] else "offline"
    more_pages = ", has more pages to pull" if client["hasMore"] else ""
    repeats = client.get("repeats")  # missing in responses of older gateways
    repeated_pull = f", repeats the same pull ({count(repeats, 'time')})" if repeats else ""
    return {
        "clientId": client["clientId"],
        "lag": _display_lag(client),
        "state": state + more_pages + repeated_pull,
        "offlineSince": output.utc_time(client.get("offlineSinceMs")),
        **{name: output.utc_time(client[f"{name}Ms"]) for name in ("pulled", "pushed")},
    }


def _display_lag(client: dict[str, Any]) -> str | None:
    """Return a client's lag as text."""
    lag = client["lagSeconds"]
    if lag is None:
        return "never pulled" if client["pulledMs"] is None else "not measured yet"
    return output.duration(lag) if lag else "none"
