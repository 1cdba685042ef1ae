"""`lakesync flush`: what waits goes to the lake now."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app()

_LOOK_SECONDS = 0.5


@app.command(
    epilog=examples(
        ("lakesync flush --gateway shop", "and wait until it is in the lake"),
        ("lakesync flush --wait 0", "only ask for it"),
    )
)
def flush(
    wait: Annotated[float, typer.Option(help="Seconds to wait until it is in the lake; 0: do not.", min=0)] = 120.0,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Carry what waits to the lake now.

    Exit code 1: the time was over before all of it was there; the flush goes on.
    """
    from lakesync.cli.connection import connect

    remote = connect(url, gateway, token_file, data)
    deadline, patient = time.monotonic() + wait, False
    with output.working("flushing"):
        while True:
            left = max(0.0, deadline - time.monotonic())
            told = remote.post("/admin/flush/{gateway}", wait=round(min(left, 20.0), 1) or None)
            done = bool(told.get("flushed")) and told.get("merged", True)
            if done or time.monotonic() >= deadline:
                break
            if told.get("flushed"):
                time.sleep(_LOOK_SECONDS)  # until the tables and the checkpoint follow
            elif not patient:
                patient = True
                output.note(
                    f"not in the lake yet, waiting up to {wait:g} s: what carries it there is `lakesync up`, or a "
                    "gateway that was started with --flush-to"
                )
    if as_json:
        output.record(told)
    elif not wait:
        print("asked for")
    elif done:
        snapshot = told.get("snapshotId")
        print(f"all that waited is in the lake{f', snapshot {snapshot}' if snapshot else ''}")
    elif told.get("flushed"):
        output.note(
            f"all that waited is in the lake's history, and after {wait:g} s not in all state tables and the "
            "checkpoint: `lakesync status` says what is behind, and why"
        )
    else:
        output.note(f"not all that waited is in the lake after {wait:g} s: `lakesync status` says what waits, and why")
    if wait and not done:
        raise typer.Exit(ExitCode.FAILED)
