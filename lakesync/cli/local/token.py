"""`lakesync token`: what clients and admins show a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Claim, Data, Gateway, Json, named_claims, read_text, settings

if TYPE_CHECKING:
    from lakesync.auth import Finding, Identity

ROLES = ("client", "admin")


def _completed_roles(incomplete: str) -> list[str]:
    return [name for name in ROLES if name.startswith(incomplete)]


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
    role: Annotated[str, typer.Option(help="client or admin.", autocompletion=_completed_roles)] = "client",
    claim: Claim = None,
    hours: Annotated[float, typer.Option(help="How long it is good for.", min=0.001)] = 24.0,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Print a token, signed with LAKESYNC_JWT_SECRET or the secret that `lakesync up` made in the data folder."""
    from lakesync.cli import output
    from lakesync.cli.connection import secret_of, sign, which_gateway
    from lakesync.model.errors import ConfigurationError
    from lakesync.model.validation import check_gateway_id, check_id

    if role not in ROLES:
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
    from lakesync.model.errors import ValidationError

    found = claims(read_text(file).strip())
    if not found:
        raise ValidationError(f"{file} holds no JWT: three parts of base64 with full stops between them")
    expires = found.get("exp")
    known = {**found, "expires": output.moment(int(expires * 1000)) if isinstance(expires, int | float) else None}
    output.facts(known, as_json=as_json)


@app.command(
    epilog=examples(
        ("lakesync token inspect < token.txt", "with the settings of this folder"),
        ("lakesync token inspect token.txt --gateway desk --role admin", "and may it enter this gateway, as an admin?"),
        ("lakesync token inspect token.txt --json", "for a script"),
    )
)
def inspect(
    shown: Annotated[
        str, typer.Argument(metavar="[TOKEN]", help="The token, a file that holds it, or `-` for stdin.")
    ] = "-",
    gateway: Gateway = None,
    role: Annotated[str, typer.Option(help="client or admin.", autocompletion=_completed_roles)] = "client",
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Explain check by check why a gateway takes or refuses a token.

    The settings are those that a gateway would have here. Keys of issuers are fetched as a gateway fetches them. A
    token on the command line is seen by other users of the machine: prefer stdin or a file. Exits with 4 if the token
    is refused.
    """
    from lakesync.auth import TokenRefusedError, TokenVerifier, configured_issuers
    from lakesync.cli import output
    from lakesync.cli.connection import secrets_of
    from lakesync.model.errors import ConfigurationError

    if role not in ROLES:
        raise typer.BadParameter(f"--role is {role!r}, it must be client or admin")
    given = shown if shown.count(".") == 2 and not Path(shown[:255]).is_file() else read_text(Path(shown)).strip()
    config = settings(data)
    issuers, secrets = configured_issuers(config), secrets_of(config)
    if not issuers and not secrets:
        raise ConfigurationError(
            "a gateway with these settings wants no token: set [[gateway.issuers]] or LAKESYNC_JWT_SECRET"
        )
    verifier = TokenVerifier(secrets, issuers=issuers, sole_gateway=config.sole_gateway)
    for failure in verifier.load_keys(given):
        output.note(f"keys cannot be fetched: {failure}")
    found = verifier.findings(given)
    identity = None
    try:
        identity = verifier.verify(given)
        found += _admission(identity, gateway, role)
    except TokenRefusedError:
        pass  # a finding says so
    taken = all(finding.state == "ok" for finding in found)
    if as_json:
        output.record({"taken": taken, **_said(identity), "checks": [finding._asdict() for finding in found]})
    else:
        output.records((finding._asdict() for finding in found), as_json=False)
        output.note(_conclusion(identity) if taken else "a gateway with these settings refuses the token")
    if not taken:
        raise typer.Exit(ExitCode.AUTH)


def _admission(identity: Identity, gateway: str | None, role: str) -> list[Finding]:
    """What a route checks after the token itself."""
    from lakesync.auth import Finding

    found = []
    if gateway is not None:
        named = ", ".join(identity.gateways) or "none"
        found.append(Finding("enter", "ok" if gateway in identity.gateways else "failed", f"it may enter {named}"))
    if role == "admin":
        found.append(Finding("admin", "ok" if identity.role == "admin" else "failed", f"its role is {identity.role}"))
    return found


def _said(identity: Identity | None) -> dict[str, Any]:
    if identity is None:
        return {}
    return {
        "client": identity.client_id,
        "role": identity.role,
        "gateways": identity.gateways,
        "expires": identity.expires,
        "claims": identity.claims,
    }


def _conclusion(identity: Identity | None) -> str:
    assert identity is not None
    where = ", ".join(identity.gateways) or "no gateway"
    return f"a gateway with these settings takes the token as {identity.role} {identity.client_id!r} of {where}"
