"""`lakesync console`: prints a link that opens the gateway's operator console, a web page, already signed in.

The link carries a token in its fragment, the part after `#`, which browsers do not send to servers.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app()


@app.command(
    epilog=examples(
        ("lakesync console --open", "in this machine's browser"),
        ("lakesync console --gateway shop --hours 1", "valid for an hour"),
    )
)
def console(
    hours: Annotated[float, typer.Option(help="Hours until the sign-in expires.", min=0.01, max=24)] = 8.0,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Print the address of the gateway's console, signed in.

    The console shows which clients are behind, and why a client lacks a row. The address contains a token after `#`;
    keep it as secret as the token.
    """
    from lakesync.cli.connection import connect
    from lakesync.client.transports.tokens import claims

    remote = connect(url, gateway, token_file, data, seconds=hours * 3600)
    remote.get("/admin/settings/{gateway}")  # checks that the gateway answers and accepts the token
    fragment = {"token": remote.token} if remote.token else {}
    if "gw" not in claims(remote.token or ""):  # tokens of login providers, for example, do not name the gateway
        fragment["gateway"] = remote.gateway
    console_url = f"{remote.url}/console#{urlencode(fragment)}"
    if as_json:
        output.record({"url": console_url})
    else:
        print(console_url)
    if open_it:
        import webbrowser

        if not webbrowser.open(console_url):
            output.note("no browser was found; open the address manually")
