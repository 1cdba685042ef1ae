"""`lakesync connectors`: the systems that actions and ingestion talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.connectors_test import check
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url, Yes, read_json

app = command_app(
    "Register the systems that actions and ingestion talk to.",
    examples(("lakesync connectors types", "what there is"), ("lakesync connectors register jira.json", "")),
)


@app.callback()
def connectors() -> None:
    """Register the systems that actions and ingestion talk to."""


@app.command("list", epilog=examples(("lakesync connectors list --gateway shop", "never a setting or a secret")))
def list_(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """List the connectors of a gateway."""
    from lakesync.cli.remote import connect

    told = connect(url, gateway, token_file, data).get("/admin/connectors/{gateway}")
    output.records(
        told, as_json=as_json, columns=("name", "type", "hasIngest=ingests"), none="no connector is registered"
    )


@app.command(epilog=examples(("lakesync connectors types --json", "with the JSON Schema of each one's settings")))
def types(url: Url = None, data: Data = None, *, as_json: Json = False) -> None:
    """List the types of connectors that the gateway knows."""
    from lakesync.cli.remote import connect

    told = connect(url, None, None, data, named=False).get("/connectors/types")
    output.records(told, as_json=as_json, columns=("type", "displayName=name", "category", "description"))


@app.command(
    epilog=examples(
        ("lakesync connectors register jira.json", "secrets in it are references, env:NAME, or are sealed"),
        ("lakesync fake jira --json | jq .connector | lakesync connectors register -", "of a site that is made up"),
    )
)
def register(
    file: Annotated[Path, typer.Argument(help="JSON: name, type, settings, ingest; `-` is stdin.", allow_dash=True)],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Register a connector."""
    from lakesync.cli.remote import connect

    told = connect(url, gateway, token_file, data).post("/admin/connectors/{gateway}", read_json(file))
    output.facts(told, as_json=as_json)


@app.command(epilog=examples(("lakesync connectors unregister jira --yes", "rows that it brought stay")))
def unregister(
    name: Annotated[str, typer.Argument(help="The connector's name.", show_default=False)],
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Forget a connector; what it brought stays."""
    from urllib.parse import quote

    from lakesync.cli.remote import connect

    output.confirm(f"Unregister the connector {name!r}?", yes=yes)
    told = connect(url, gateway, token_file, data).delete(f"/admin/connectors/{{gateway}}/{quote(name, safe='')}")
    output.facts(told, as_json=as_json)


app.command(
    "test",
    epilog=examples(
        ("lakesync connectors test jira", "credentials, permissions, clock and a page"),
        ("lakesync connectors test jira --gateway shop --json", "one object a check; the exit code says how it ended"),
    ),
)(check)
