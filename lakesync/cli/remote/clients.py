"""`lakesync clients`: lists the lag of each client of a gateway, and since when it is offline."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app()

COLUMNS = ("clientId=client", "lag", "state", "offlineSince=offline since", "pulled", "pushed")
"""The columns of the table, for `output.records`; `lakesync status` prints the same."""


@app.command(
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
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """List the clients of a gateway, the largest lag first.

    The lag is the age of the oldest change by others that the client may see and was not sent. A client is offline
    since its last request, or since its WebSocket ended. Only clients that called this gateway process since it
    started are listed.
    """
    from lakesync.cli.connection import connect

    metrics = connect(url, gateway, token_file, data).get("/admin/metrics/{gateway}", clients=limit)
    rows = [with_lag(each) for each in metrics["clients"]]
    output.records(
        rows if as_json else map(display_row, rows),
        as_json=as_json,
        columns=COLUMNS,
        none="no client has called this gateway process since it started",
    )


def with_lag(client: dict[str, Any]) -> dict[str, Any]:
    """Return a client's entry of `/admin/metrics` with `lagSeconds`; None if the lag is not known."""
    lag_ms = client.get("behindMs")  # missing in responses of older gateways
    return {**client, "lagSeconds": None if lag_ms is None else round(lag_ms / 1000, 3)}


def display_row(client: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the table for an entry that `with_lag` returned."""
    state = "connected" if client["connected"] else "offline"
    more = ", has more pages to pull" if client["hasMore"] else ""
    repeats = client.get("repeats")  # missing in responses of older gateways
    again = f", repeats the same pull ({repeats} times)" if repeats else ""
    return {
        "clientId": client["clientId"],
        "lag": _display_lag(client),
        "state": state + more + again,
        "offlineSince": output.utc_time(client.get("offlineSinceMs")),
        **{name: output.utc_time(client[f"{name}Ms"]) for name in ("pulled", "pushed")},
    }


def _display_lag(client: dict[str, Any]) -> str | None:
    lag = client["lagSeconds"]
    if lag is None:
        return "never pulled" if client["pulledMs"] is None else "not measured yet"
    return output.duration(lag) if lag else "none"
