"""`lakesync flush`: has the unflushed deltas written to the lake now, and waits for it.

A flush moves deltas (changes of rows) from the gateway's log to the lake: to the history of all deltas, then into the
state tables (current rows) and the checkpoint (the snapshot from which new clients start). The gateway only records the
request. The pipeline's flush sensor sees it; without a pipeline the gateway flushes by itself.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`.
In the path of a request, `{gateway}` is the gateway's id.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.commands import ConnectionOptions, Json, command_app, examples
from lakesync.cli.exit_codes import ExitCode

flush_app = command_app()

_POLL_SECONDS = 0.5
"""Seconds between two requests while state tables and checkpoint are updated."""
_MAX_REQUEST_WAIT = 20.0
"""Seconds for which the gateway may hold one request, at most."""


@flush_app.command(
    epilog=examples(
        ("lakesync flush --gateway shop", "wait until the lake has everything"),
        ("lakesync flush --wait 0", "request it without waiting"),
    )
)
def flush(
    wait: Annotated[float, typer.Option(help="Seconds to wait for the lake; 0: do not wait.", min=0)] = 120.0,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Flush the unflushed deltas to the lake now.

    Exits with 1 if the lake does not have everything in time; the flush continues.
    """
    remote = options.connect()
    deadline, noted = time.monotonic() + wait, False
    with output.spinner("flushing"):
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            response = remote.post("/admin/flush/{gateway}", wait=round(min(remaining, _MAX_REQUEST_WAIT), 1) or None)
            # `flushed`: the history has all deltas. `merged`: so have tables and checkpoint; absent without a pipeline.
            done = bool(response.get("flushed")) and response.get("merged", True)
            if done or time.monotonic() >= deadline:
                break
            if response.get("flushed"):
                time.sleep(_POLL_SECONDS)  # until tables and checkpoint are updated
            elif not noted:
                noted = True
                output.note(
                    f"waiting up to {wait:g} s; a flush needs a running `lakesync up`, or a gateway with --flush-to"
                )
    if as_json:
        output.print_json(response)
    elif not wait:
        print("requested")
    elif done:
        snapshot = response.get("snapshotId")
        print(f"all deltas are in the lake{f', snapshot {snapshot}' if snapshot else ''}")
    elif response.get("flushed"):
        output.note(
            f"all deltas are in the lake's history, but after {wait:g} s not in all state tables and the checkpoint; "
            "`lakesync status` shows what is behind"
        )
    else:
        output.note(f"some deltas are not in the lake after {wait:g} s; `lakesync status` shows the backlog")
    if wait and not done:
        raise typer.Exit(ExitCode.FAILED)
