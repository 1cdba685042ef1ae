"""`python -m tests.crash_storm`: kills gateways under load; see `scripts/crash-storm --help`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import stamina
import typer
from rich.console import Console

from lakesync.cli.commands import examples
from tests.blackbox.progress_lines import ProgressLines
from tests.crash_storm.storm import Storm
from tests.postgres_server import postgres_server


def main(
    kills: Annotated[int, typer.Option(help="How many times a gateway is killed.", min=1)] = 200,
    staging: Annotated[str, typer.Option(help="sqlite or postgres; a server is started for the latter.")] = "sqlite",
    seed: Annotated[int | None, typer.Option(help="Seed of the places and times of kills; random by default.")] = None,
) -> None:
    """Kill gateways under load, at named points and at random times, and check that no acknowledged push is lost.

    With Postgres, its server crashes at random too, and connections are lost at COMMIT.

    The last line of the output is one JSON object. The exit code is 0 if no push was lost, doubled or stored in part.
    """
    console = Console(stderr=True)
    stamina.instrumentation.set_on_retry_hooks([])
    seed = random.randrange(10**9) if seed is None else seed
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lakesync-storm-")))
        match staging:
            case "sqlite":
                server = None
                url = f"sqlite://{folder / 'staging'}"
            case "postgres":
                server = stack.enter_context(postgres_server())
                url = server.uri
            case _:
                raise typer.BadParameter(f"--staging is {staging!r}: choose sqlite or postgres")
        progress = ProgressLines(f"kills ({staging}, seed {seed})", kills)
        report = Storm(url, folder, seed, server).run(kills, progress.advance)
    for problem in report.problems:
        console.print(problem, style="red")
    print(json.dumps(msgspec.to_builtins(report)))
    sys.exit(1 if report.problems else 0)


app = typer.Typer(add_completion=False, rich_markup_mode="rich")
app.command(
    epilog=examples(
        ("scripts/crash-storm --kills 500", "about a second each"),
        ("scripts/crash-storm --kills 100 --staging postgres --seed 7", "the same storm again"),
    )
)(main)

if __name__ == "__main__":
    app(prog_name="scripts/crash-storm")
