"""`lakesync token` and `lakesync console`: commands on the tokens (JWTs) that authenticate clients and admins.

A token permits requests to a gateway, which is one app's stream of changes on the gateway server. `token create` signs
tokens with the server's own secret (HS256), for development and scripts. Apps usually get theirs from a login provider,
an issuer of `[[gateway.issuers]]`. `token inspect` runs the server's checks of a token and lists the results. `console`
prints a link that opens the server's operator console, a web page, already signed in: it carries a token in its
fragment, the part after `#`, which browsers do not send to servers.

The parameter `options: ConnectionOptions` of `console` adds the options that choose gateway and token, from `--url`
to `--data`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

import typer

from lakesync.cli import output
from lakesync.cli.commands import (
    Claim,
    ConnectionOptions,
    Data,
    Gateway,
    Json,
    command_app,
    examples,
    load_settings,
    parse_claim_options,
)
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.input_files import read_text
from lakesync.model.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from lakesync.auth import Finding, Identity

token_app = command_app(
    "Create and inspect the tokens of clients and admins.",
    examples(("lakesync token create --gateway shop --client alice", "valid for a day")),
)
console_app = command_app()

Role = Annotated[Literal["client", "admin"], typer.Option(help="The client's role.")]
_MAX_PATH_CHARS = 255
"""Characters of an argument that are tried as a file's name. A token is longer, which the system would not accept."""


@token_app.command(
    epilog=examples(
        ("lakesync token create --client alice", "for the gateway in lakesync.toml"),
        ("lakesync token create --gateway shop --client ops --role admin --claim team=ops", "an admin's token"),
        ("export LAKESYNC_TOKEN=$(lakesync token create -g shop -c ops --role admin)", "for the other commands"),
    )
)
def create(
    client: Annotated[str, typer.Option("--client", "-c", help="The client id.")],
    gateway: Gateway = None,
    role: Role = "client",
    claim: Claim = None,
    hours: Annotated[float, typer.Option(help="Lifetime in hours.", min=0.001)] = 24.0,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Create a token and print it.

    It is signed with LAKESYNC_JWT_SECRET, else with the secret that `lakesync up` generated in the data folder.
    """
    from lakesync.cli.connection import choose_gateway, sign_token, signing_secret
    from lakesync.model.validation import check_gateway_id, check_id

    problem = (gateway and check_gateway_id(gateway)) or check_id("the client id", client)
    if problem:
        raise typer.BadParameter(problem)
    config = load_settings(data)
    gateway_id = choose_gateway(config, gateway)
    secret = signing_secret(config)
    if not secret:
        raise ConfigurationError(
            f"There is no secret to sign with, and none in {config.data_dir}. Set LAKESYNC_JWT_SECRET here and for the "
            "gateway, or name the data folder of a `lakesync up` with --data. A gateway without a secret and without "
            "[[gateway.issuers]] accepts requests from its own machine without a token."
        )
    signed = sign_token(secret, gateway_id, client, role, seconds=hours * 3600, claims=parse_claim_options(claim))
    output.print_line(signed, {"token": signed}, as_json=as_json)


@token_app.command(
    epilog=examples(("lakesync token create -g shop -c alice | lakesync token show", "its claims and expiry"))
)
def show(
    file: Annotated[Path, typer.Argument(allow_dash=True, help="File with the token; `-` is stdin.")] = Path("-"),
    *,
    as_json: Json = False,
) -> None:
    """Show the claims of a token, without verifying its signature."""
    from lakesync.client.transports.tokens import claims

    token_claims = claims(read_text(file).strip())
    if not token_claims:
        raise ValidationError(f"{file} contains no JWT; a JWT has three base64 parts separated by full stops")
    expiry = token_claims.get("exp")
    expires = output.utc_time(int(expiry * 1000)) if isinstance(expiry, int | float) else None
    output.print_fields({**token_claims, "expires": expires}, as_json=as_json)


@token_app.command(
    epilog=examples(
        ("lakesync token inspect < token.txt", "with the settings of this project"),
        ("lakesync token inspect token.txt --gateway desk --role admin", "check access to a gateway as an admin"),
        ("lakesync token inspect token.txt --json", "for a script"),
    )
)
def inspect(
    source: Annotated[
        str, typer.Argument(metavar="[TOKEN]", help="The token, a file with it, or `-` for stdin.")
    ] = "-",
    gateway: Gateway = None,
    role: Role = "client",
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Explain why a gateway accepts or rejects a token.

    Uses the settings that a gateway would have here, and fetches the keys of issuers. Other users of the machine can
    see a token on the command line; prefer stdin or a file. Exits with 4 if the token is rejected.
    """
    from lakesync.auth import TokenRejectedError, TokenVerifier, configured_issuers
    from lakesync.cli.connection import verification_secrets

    is_token = source.count(".") == 2 and not Path(source[:_MAX_PATH_CHARS]).is_file()  # a JWT has three parts
    token_text = source if is_token else read_text(Path(source)).strip()
    config = load_settings(data)
    issuers, secrets = configured_issuers(config), verification_secrets(config)
    if not issuers and not secrets:
        raise ConfigurationError(
            "a gateway with these settings requires no token; to require one, set [[gateway.issuers]] or "
            "LAKESYNC_JWT_SECRET"
        )
    verifier = TokenVerifier(secrets, issuers=issuers, sole_gateway=config.sole_gateway)
    for failure in verifier.load_keys(token_text):
        output.note(f"keys cannot be fetched: {failure}")
    findings = verifier.findings(token_text)
    identity = None
    try:
        identity = verifier.verify(token_text)
        findings += _admission(identity, gateway, role)
    except TokenRejectedError:
        pass  # `findings` has the reason
    accepted = all(finding.state == "ok" for finding in findings)
    if as_json:
        output.print_json(
            {"accepted": accepted, **_identity_fields(identity), "checks": [finding._asdict() for finding in findings]}
        )
    else:
        output.print_rows((finding._asdict() for finding in findings), as_json=False)
        output.note(_conclusion(identity) if accepted else "a gateway with these settings rejects the token")
    if not accepted:
        raise typer.Exit(ExitCode.AUTH)


def _admission(identity: Identity, gateway: str | None, role: str) -> list[Finding]:
    """Return the results of the checks that a route makes after those of the token itself.

    Args:
        identity: the client in the token.
        gateway: the gateway that the client calls (`--gateway`); None: not checked.
        role: `admin` to check whether the client may call admin routes.
    """
    from lakesync.auth import Finding

    findings = []
    if gateway is not None:
        named = ", ".join(identity.gateways) or "none"
        findings.append(Finding("enter", "ok" if gateway in identity.gateways else "failed", f"it may enter {named}"))
    if role == "admin":
        is_admin = identity.role == "admin"
        findings.append(Finding("admin", "ok" if is_admin else "failed", f"its role is {identity.role}"))
    return findings


def _identity_fields(identity: Identity | None) -> dict[str, Any]:
    """Return the fields of the JSON output that describe a client; none if the token was rejected."""
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
    """Return the sentence about an accepted token."""
    assert identity is not None
    where = ", ".join(identity.gateways) or "no gateway"
    return f"a gateway with these settings accepts the token as {identity.role} {identity.client_id!r} of {where}"


@console_app.command(
    epilog=examples(
        ("lakesync console --open", "in this machine's browser"),
        ("lakesync console --gateway shop --hours 1", "valid for an hour"),
    )
)
def console(
    hours: Annotated[float, typer.Option(help="Hours until the sign-in expires.", min=0.01, max=24)] = 8.0,
    *,
    options: ConnectionOptions,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Print the address of the gateway's console, signed in.

    The console shows which clients are behind, and why a client lacks a row. The address contains a token after `#`;
    keep it as secret as the token.
    """
    from lakesync.client.transports.tokens import claims

    remote = options.connect(token_seconds=hours * 3600)
    remote.get("/admin/settings/{gateway}")  # checks that the gateway answers and accepts the token
    fragment = {"token": remote.token} if remote.token else {}
    if "gw" not in claims(remote.token or ""):  # tokens of login providers, for example, do not name the gateway
        fragment["gateway"] = remote.gateway
    console_url = f"{remote.url}/console#{urlencode(fragment)}"
    output.print_line(console_url, {"url": console_url}, as_json=as_json)
    if open_it:
        import webbrowser

        if not webbrowser.open(console_url):
            output.note("no browser was found; open the address manually")
