"""`lakesync flush`: what waits goes to the lake now."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.ending import ExitCode
from lakesync.cli.examples import examples
from lakesync.cli.lazy import command_app
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app()


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
    from lakesync.cli.remote import connect

    remote = connect(url, gateway, token_file, data)
    deadline, patient = time.monotonic() + wait, False
    with output.working("flushing"):
        while True:
            left = max(0.0, deadline - time.monotonic())
            told = remote.post("/admin/flush/{gateway}", wait=round(min(left, 20.0), 1) or None)
            if told.get("flushed") or time.monotonic() >= deadline:
                break
            if not patient:
                patient = True
                output.note(
                    f"not in the lake yet, waiting up to {wait:g} s: what carries it there is `lakesync up`, or a "
                    "gateway that was started with --flush-to"
                )
    if as_json:
        output.record(told)
    elif not wait:
        print("asked for")
    elif told.get("flushed"):
        snapshot = told.get("snapshotId")
        print(f"all that waited is in the lake{f', snapshot {snapshot}' if snapshot else ''}")
    else:
        output.note(f"not all that waited is in the lake after {wait:g} s: `lakesync status` says what waits, and why")
    if wait and not told.get("flushed"):
        raise typer.Exit(ExitCode.FAILED)
