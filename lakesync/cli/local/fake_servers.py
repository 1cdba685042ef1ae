"""`lakesync fake`: fake Jira and Salesforce servers on this machine, to try connectors without an account.

The servers are those of `lakesync.testing.servers`, which the tests use too. With `--every` their data changes by
itself, so that polls find changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from lakesync.cli import output
from lakesync.cli.commands import command_app, examples

if TYPE_CHECKING:
    from lakesync.testing.servers import Service

fake_app = command_app("Run a fake Jira or Salesforce server to try connectors.")

Port = Annotated[int, typer.Option(help="Port to listen on; 0: any free port.")]
Every = Annotated[float, typer.Option(help="Seconds between spontaneous changes; 0: no changes.", min=0)]
Seed = Annotated[int, typer.Option(help="Seed of the generated data.")]
Skew = Annotated[float, typer.Option(help="Seconds that its clock is ahead of this machine; negative: behind.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print its URL and a connector for it as one JSON object.")]

_SPACING_MS = 10_000
"""Milliseconds between the times of the initial records. Connectors read the last minutes again in each poll. If all
records had the same time, all would be read again."""

_POLL_MS = 30_000
"""Milliseconds between the polls of the printed connector."""

_WORDS = ["engine", "harbour", "lamp", "mill", "river", "signal", "tower", "valve", "window", "yard"]


@fake_app.command(
    epilog=examples(
        ("lakesync fake jira", "200 issues, on a free port"),
        ("lakesync fake jira --port 8081 --issues 5000 --every 1", "with a change every second"),
        ("lakesync fake jira --lag 60 --skew -300 --calls 100", "slow search, wrong clock, rate limit"),
    )
)
def jira(
    port: Port = 0,
    issues: Annotated[int, typer.Option(help="Initial issues.", min=0)] = 200,
    every: Every = 0.0,
    seed: Seed = 0,
    skew: Skew = 0.0,
    lag: Annotated[float, typer.Option(help="Seconds by which its search lags behind writes.", min=0)] = 0.0,
    calls: Annotated[int, typer.Option(help="Requests per minute that it allows.", min=1)] = 10_000,
    *,
    as_json: AsJson = False,
) -> None:
    """Run a fake Jira Cloud site until Ctrl-C or SIGTERM."""
    from lakesync.testing.servers.jira import JiraApi, JiraSite, Limits

    clock = _Clock(skew)
    rng, site = random.Random(seed), JiraSite(clock, index_lag_ms=int(lag * 1000))  # noqa: S311 made-up data
    for key in ("SUP", "OPS"):
        site.add_project(key)

    def add() -> None:
        site.add_issue(rng.choice(("SUP", "OPS")), _title(rng))

    def edit() -> None:
        site.edit(rng.choice(list(site.issues.values())), summary=_title(rng))

    change = _populate(issues, clock, rng, add, edit)
    api = JiraApi(site, limits=Limits(calls))
    connector = _Connector("jira", "baseUrl", {"domain": "fake", "email": api.email, "apiToken": api.token})
    _listen(api, port, connector, change=change, change_seconds=every, as_json=as_json)


@fake_app.command(
    epilog=examples(
        ("lakesync fake salesforce --json", "its URL and a connector, for a script"),
        ("lakesync fake salesforce --accounts 100000", "enough for the Bulk API"),
    )
)
def salesforce(
    port: Port = 0,
    accounts: Annotated[int, typer.Option(help="Initial accounts.", min=0)] = 200,
    every: Every = 0.0,
    seed: Seed = 0,
    skew: Skew = 0.0,
    calls: Annotated[int, typer.Option(help="Requests per day that it allows.", min=1)] = 15_000,
    *,
    as_json: AsJson = False,
) -> None:
    """Run a fake Salesforce organisation until Ctrl-C or SIGTERM."""
    from lakesync.testing.servers.salesforce import SalesforceApi, SalesforceOrg

    clock = _Clock(skew)
    rng, org = random.Random(seed), SalesforceOrg(clock)  # noqa: S311 made-up data

    def add() -> None:
        org.add("Account", Name=_title(rng), NumberOfEmployees=rng.randrange(1, 5000))

    def edit() -> None:
        org.edit(rng.choice(list(org.records.values())), Phone=str(rng.randrange(10**9)))

    change = _populate(accounts, clock, rng, add, edit)
    api = SalesforceApi(org, daily_limit=calls)
    connector = _Connector("salesforce", "instanceUrl", {"clientId": api.client_id, "clientSecret": api.client_secret})
    _listen(api, port, connector, change=change, change_seconds=every, as_json=as_json)


class _Clock:
    """A clock that can be wrong, and can be set back while initial records are created."""

    def __init__(self, seconds_ahead: float) -> None:
        self.back_ms = 0
        """Milliseconds by which it is set back."""
        self._ahead_ms = int(seconds_ahead * 1000)

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms - self.back_ms


def _populate(
    count: int, clock: _Clock, rng: random.Random, add: Callable[[], None], edit: Callable[[], None]
) -> Callable[[], None]:
    """Create the initial records, and return a function that makes one random change.

    Args:
        count: the number of initial records.
        clock: the server's clock, which is set back for each initial record.
        rng: decides between the two kinds of change.
        add: adds a record.
        edit: edits a record.
    """
    for number in range(count, 0, -1):
        clock.back_ms = number * _SPACING_MS
        add()
    clock.back_ms = 0
    has_records = count > 0

    def change() -> None:
        nonlocal has_records
        if not has_records or rng.random() < 0.5:
            add()
            has_records = True
        else:
            edit()

    return change


class _Connector(NamedTuple):
    """A connector to a fake server."""

    kind: str
    """Its type, and its name."""
    url_setting: str
    """The name of its setting for the server's URL."""
    settings: dict[str, str]
    """Its other settings."""


def _listen(
    api: Service, port: int, connector: _Connector, *, change: Callable[[], None], change_seconds: float, as_json: bool
) -> None:
    """Serve an API until SIGINT or SIGTERM, and print its URL and a connector for it.

    Args:
        api: the fake API.
        port: the port to listen on; 0: any free port.
        connector: the connector.
        change: makes one random change.
        change_seconds: seconds between changes; 0: no changes.
        as_json: whether to print JSON.
    """
    from lakesync.cli.up.process import check_port, stop_event
    from lakesync.testing.servers import serve

    check_port(port, "127.0.0.1", "--port")
    with serve(api, port=port) as served:
        kind, settings = connector.kind, {connector.url_setting: served.url, **connector.settings}
        body = {"name": kind, "type": kind, kind: settings, "ingest": {"intervalMs": _POLL_MS}}
        if as_json:
            print(json.dumps({"url": served.url, "connector": body}), flush=True)
            # The program that reads a pipe waits for its end, and this process runs on.
            with Path(os.devnull).open("wb") as devnull:
                os.dup2(devnull.fileno(), sys.stdout.fileno())
        else:
            print(f"{kind} listens at {served.url}. Register this connector to it:", flush=True)
            print(json.dumps(body, indent=2), flush=True)
            output.note(
                'allow the gateway to call it: [connectors] allowed_hosts = ["*", "127.0.0.1"] in lakesync.toml'
            )
        stop = stop_event()
        while not stop.wait(change_seconds or None):
            served.change_state(change)  # while no request is processed


def _title(rng: random.Random) -> str:
    return f"{rng.choice(_WORDS)} {rng.choice(_WORDS)} {rng.randrange(1000)}"
