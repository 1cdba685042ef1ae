"""`lakesync clients`: how far each client of a gateway is behind, and since when it is offline."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app()

COLUMNS = ("clientId=client", "lag", "state", "offlineSince=offline since", "pulled", "pushed")


@app.command(
    epilog=examples(
        ("lakesync clients --gateway shop", "who is behind, and by how much"),
        ("lakesync clients --json | jq 'select(.lagSeconds > 60)'", "a minute behind, or more"),
        (
            "lakesync clients --json | jq 'select(now * 1000 - (.offlineSinceMs // infinite) > 86400000)'",
            "offline for a day",
        ),
    )
)
def clients(
    limit: Annotated[int, typer.Option(help="Most clients to show.", min=1, max=1000)] = 100,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Show each client of a gateway, the one that is furthest behind first.

    The lag is the age of the oldest change by others that the client may see and was not sent; a client that is
    offline and lacks nothing has none. Offline since: its last request, or the end of its WebSocket. A client that is
    not shown has not talked to this process of the gateway since it started.
    """
    from lakesync.cli.connection import connect

    told = connect(url, gateway, token_file, data).get("/admin/metrics/{gateway}", clients=limit)
    rows = [standing(each) for each in told["clients"]]
    output.records(
        rows if as_json else map(in_words, rows),
        as_json=as_json,
        columns=COLUMNS,
        none="no client has talked to this process of the gateway since it started",
    )


def standing(client: dict[str, Any]) -> dict[str, Any]:
    """A client's line of `/admin/metrics`, with its lag in seconds."""
    behind = client.get("behindMs")  # a gateway of before does not say
    return {**client, "lagSeconds": None if behind is None else round(behind / 1000, 3)}


def in_words(client: dict[str, Any]) -> dict[str, Any]:
    """The same for people."""
    state = "connected" if client["connected"] else "offline"
    more = ", more waits for it" if client["hasMore"] else ""
    repeats = client.get("repeats")  # a gateway of before does not say
    again = f", asks for the same page again ({repeats} times)" if repeats else ""
    return {
        "clientId": client["clientId"],
        "lag": _lag_in_words(client),
        "state": state + more + again,
        "offlineSince": output.moment(client.get("offlineSinceMs")),
        **{name: output.moment(client[f"{name}Ms"]) for name in ("pulled", "pushed")},
    }


def _lag_in_words(client: dict[str, Any]) -> str | None:
    lag = client["lagSeconds"]
    if lag is None:
        return "never pulled" if client["pulledMs"] is None else "unknown yet"
    return output.ago(lag) if lag else "none"
