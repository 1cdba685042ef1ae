"""`lakesync token`: what clients and admins show a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli import completing
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Claim, Data, Gateway, Json, named_claims, read_text, settings

app = command_app(
    "Make the tokens that clients and admins show a gateway, and read them.",
    examples(("lakesync token create --gateway shop --client alice", "good for a day")),
)


@app.callback()
def token() -> None:
    """Make the tokens that clients and admins show a gateway, and read them."""


@app.command(
    epilog=examples(
        ("lakesync token create --client alice", "for the gateway of the project's file"),
        ("lakesync token create --gateway shop --client ops --role admin --claim team=ops", "for the admin routes"),
        ("export LAKESYNC_TOKEN=$(lakesync token create -g shop -c ops --role admin)", "for the other commands"),
    )
)
def create(
    client: Annotated[str, typer.Option("--client", "-c", help="The client id.")],
    gateway: Gateway = None,
    role: Annotated[str, typer.Option(help="client or admin.", autocompletion=completing.roles)] = "client",
    claim: Claim = None,
    hours: Annotated[float, typer.Option(help="How long it is good for.", min=0.001)] = 24.0,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Print a token, signed with LAKESYNC_JWT_SECRET or the secret that `lakesync up` made in the data folder."""
    from lakesync.cli import output
    from lakesync.cli.remote import secret_of, sign, which_gateway
    from lakesync.exceptions import ConfigurationError
    from lakesync.validation import check_gateway_id, check_id

    if role not in ("client", "admin"):
        raise typer.BadParameter(f"--role is {role!r}, it must be client or admin")
    wrong = (gateway and check_gateway_id(gateway)) or check_id("the client id", client)
    if wrong:
        raise typer.BadParameter(wrong)
    config = settings(data)
    chosen = which_gateway(config, gateway)
    secret = secret_of(config)
    if not secret:
        raise ConfigurationError(
            f"There is no secret to sign with: set LAKESYNC_JWT_SECRET, or name the folder of a `lakesync up` with "
            f"--data ({config.data_dir} has none). A gateway that was started without one wants no token, on its own "
            "machine."
        )
    made = sign(secret, chosen, client, role, seconds=hours * 3600, claims=named_claims(claim))
    if as_json:
        output.record({"token": made})
    else:
        print(made)


@app.command(
    epilog=examples(("lakesync token create -g shop -c alice | lakesync token show", "whose it is, until when"))
)
def show(
    file: Annotated[Path, typer.Argument(allow_dash=True, help="Holds the token; `-` is stdin.")] = Path("-"),
    *,
    as_json: Json = False,
) -> None:
    """Show what a token says; whether it is signed by the right secret is the gateway's business."""
    from lakesync.cli import output
    from lakesync.client.transports.tokens import claims
    from lakesync.exceptions import ValidationError

    found = claims(read_text(file).strip())
    if not found:
        raise ValidationError(f"{file} holds no JWT: three parts of base64 with full stops between them")
    expires = found.get("exp")
    known = {**found, "expires": output.moment(int(expires * 1000)) if isinstance(expires, int | float) else None}
    output.facts(known, as_json=as_json)
