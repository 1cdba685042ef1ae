"""`lakesync materialise`: brings a destination's tables in line after flushes, where an object store is the queue."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, settings

app = command_app()

_LOOK_SECONDS = 2.0


@app.command(
    epilog=examples(
        ("lakesync materialise", "until Ctrl-C or SIGTERM, beside gateways that have [flush] queue"),
        ("lakesync materialise --once", "what waits now, from a timer"),
    )
)
def materialise(
    data: Data = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="End when nothing waits.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a destination's tables in line after a gateway's flushes."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    done = _run(data, stop, once=once)
    output.facts({"done": done}, as_json=as_json)


def _run(data: Path | None, stop: threading.Event, *, once: bool) -> int:
    """Work the queue off until it is empty, or until `stop` is set; how many jobs were done."""
    from lakesync.adapters import open_adapter
    from lakesync.adapters.base import Materialisable
    from lakesync.adapters.registry import as_database
    from lakesync.flush import Materialiser, ObjectFlushQueue
    from lakesync.flush.object_queue import open_queue_store
    from lakesync.model.errors import ConfigurationError, TransientError

    flush = settings(data).flush
    if not flush.queue or not flush.to_uri:
        raise ConfigurationError("set queue and to_uri in [flush]: without a queue the gateway does this work itself")
    done = 0
    with ExitStack() as opening:
        adapter = open_adapter(flush.to_uri)
        opening.callback(adapter.close)
        destination = as_database(adapter, flush.format)
        if not isinstance(destination, Materialisable):
            raise ConfigurationError(f"{flush.to_uri.partition(':')[0]} keeps no tables of rows: nothing is to be done")
        queue = ObjectFlushQueue(open_queue_store(flush.queue, opening))
        while not stop.is_set():
            try:
                done += sum(Materialiser(each, queue, destination).run_once() for each in queue.gateways())
            except TransientError as error:
                if once:
                    raise
                output.note(f"the queue cannot be reached, it is tried again: {error}")
            if once:
                break
            stop.wait(_LOOK_SECONDS)
    return done
