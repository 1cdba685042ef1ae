"""The commands of `lakesync`: each parses its options, loads the configuration and calls one function."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lakesync.cli import fake as fake_commands
from lakesync.cli import row as row_commands
from lakesync.cli import staging as staging_commands
from lakesync.cli.erase import erase
from lakesync.cli.examples import examples
from lakesync.cli.migrate import migrate
from lakesync.cli.query import query
from lakesync.config import load
from lakesync.exceptions import ConfigurationError, StartupError

app = typer.Typer(
    name="lakesync",
    help="Offline-first sync with an Iceberg lakehouse behind it. Settings: lakesync.toml and LAKESYNC_* variables.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        ("lakesync up", "gateway, Spark and Dagster"),
        ("lakesync gateway --data /var/lib/lakesync", "the gateway alone"),
        ("lakesync token --gateway shop --client alice", "what a client shows it"),
        ("lakesync COMMAND --help", "options, and more examples"),
    ),
)

app.add_typer(staging_commands.app, name="staging")
app.add_typer(row_commands.app, name="row")
app.add_typer(fake_commands.app, name="fake")
app.command(
    epilog=examples(
        ("lakesync erase --gateway shop --client alice", "all that she wrote"),
        ("lakesync erase --gateway shop --table orders --row 4711 --yes", "one row"),
    )
)(erase)
app.command(
    epilog=examples(
        ("lakesync migrate --from sqlite:///var/lib/old.db --to env:NEW_URI", "all of it"),
        ("lakesync migrate --from file:///objects --to postgresql://host/db --table orders --dry-run", "what there is"),
    )
)(migrate)
app.command(
    epilog=examples(
        ("lakesync query 'SELECT status, count(*) FROM orders GROUP BY ALL'", "now, with what is not flushed yet"),
        ("lakesync query 'FROM orders' --as-of 2026-11-20T18:00 --json", "what had arrived by then"),
        (
            "lakesync query \"SELECT hlc_time(arrival), op, columns FROM deltas WHERE table_name = 'orders'\"",
            "the history",
        ),
    )
)(query)

Data = Annotated[Path | None, typer.Option("--data", help="The folder that keeps everything.", show_default=False)]


@app.command(
    epilog=examples(
        ("lakesync up", "everything, on the ports of lakesync.toml"),
        ("lakesync up --data /var/lib/lakesync --port 0 --dagster-port 0", "on free ports"),
    )
)
def up(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="The gateway's address.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="The gateway's port; 0: a free one.", show_default=False)] = None,
    dagster_port: Annotated[int | None, typer.Option(help="The port of Dagster's pages.", show_default=False)] = None,
    clock_offset_file: Annotated[
        Path | None, typer.Option(help="A file with milliseconds that the gateway adds to its clock.")
    ] = None,
    *,
    json_events: Annotated[bool, typer.Option("--json-events", help="One JSON line a change on stdout.")] = False,
) -> None:
    """Start gateway, Spark and Dagster, keep them running, and stop them all on Ctrl-C or SIGTERM."""
    from lakesync.cli.show import Display
    from lakesync.cli.up import run

    _need("gateway", "lakesync_dagster")
    overrides = _given(
        data_dir=data,
        clock_offset_file=clock_offset_file and clock_offset_file.absolute(),
        gateway=_given(host=host, port=port),
        dagster=_given(port=dagster_port),
    )
    run(load(overrides), Display(json_events=json_events))


@app.command(
    epilog=examples(
        ("LAKESYNC_JWT_SECRET=… lakesync gateway --host 0.0.0.0 --port 8787", "for other machines"),
        ("lakesync gateway --staging postgresql://user:password@host/db", "one of several"),
        ("lakesync gateway --flush-to file:///var/lib/lakesync/objects", "without a pipeline"),
    )
)
def gateway(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0: a free one.", show_default=False)] = None,
    staging: Annotated[
        str | None, typer.Option(help="sqlite:///ABSOLUTE/FOLDER, postgresql://… or memory://", show_default=False)
    ] = None,
    flush_to: Annotated[
        str | None,
        typer.Option(help="Where the gateway flushes by itself: file:///FOLDER, sqlite:///FILE, …", show_default=False),
    ] = None,
) -> None:
    """Run the gateway alone. Clients' tokens are checked with the secret in LAKESYNC_JWT_SECRET."""
    _need("gateway")
    overrides = _given(
        data_dir=data,
        gateway=_given(host=host, port=port),
        staging=_given(url=staging),
        flush=_given(to_uri=flush_to),
    )
    environment = {**os.environ, **load(overrides).environment()}
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], environment)  # noqa: S606 no shell is wanted


@app.command(
    epilog=examples(
        ("lakesync token --gateway shop --client alice", ""),
        ("lakesync token --gateway shop --client ops --role admin --claim team=ops", "for the admin routes"),
    )
)
def token(
    gateway: Annotated[str, typer.Option(help="The gateway id that the token is for.")],
    client: Annotated[str, typer.Option(help="The client id.")],
    role: Annotated[str, typer.Option(help="client or admin.")] = "client",
    claim: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; repeat it for a list.")] = None,
    hours: Annotated[float, typer.Option(help="How long it is good for.")] = 24.0,
    data: Data = None,
) -> None:
    """Print a token, signed with LAKESYNC_JWT_SECRET or the secret that `lakesync up` made in the data folder."""
    import jwt

    claims: dict[str, Any] = {}
    for each in claim or []:
        name, _, value = each.partition("=")
        claims[name] = value if name not in claims else [*_listed(claims[name]), value]
    payload = {**claims, "sub": client, "gw": gateway, "role": role, "exp": int(time.time() + hours * 3600)}
    print(jwt.encode(payload, _jwt_secret(data), algorithm="HS256"))


def _jwt_secret(data: Path | None) -> str:
    from lakesync.cli.secrets import kept

    config = load(_given(data_dir=data))
    found = config.jwt_secret.get_secret_value() if config.jwt_secret else kept(config.data_dir).get("jwt_secret")
    if not found:
        raise ConfigurationError(
            f"There is no secret to sign with: set LAKESYNC_JWT_SECRET, or name the folder of a `lakesync up` with "
            f"--data ({config.data_dir} has none)."
        )
    return found


def _listed(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _given(**values: Any) -> dict[str, Any]:
    """What was given on the command line; the rest is left to variables and file."""
    return {name: value for name, value in values.items() if value not in (None, {})}


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise StartupError(
                f"The package {package} is not here: it is part of LakeSync's platform, which runs from a checkout "
                "(scripts/install), not from the wheel."
            )
