"""`lakesync materialise`: updates destination tables from a flush queue in an object store.

Without a pipeline, a gateway flushes deltas to an adapter by itself (`--flush-to`). An adapter keeps the deltas, and
destination tables with the current rows. With `[flush] queue`, the gateway writes only the deltas and a job in the
queue for each flush; this command updates the tables.
"""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Json, load_settings

app = command_app()

_POLL_SECONDS = 2.0
"""Seconds between two reads of the queue."""


@app.command(
    epilog=examples(
        ("lakesync materialise", "until Ctrl-C or SIGTERM"),
        ("lakesync materialise --once", "empty the queue and exit, from a timer"),
    )
)
def materialise(
    data: Data = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Exit when the queue is empty.")] = False,
    as_json: Json = False,
) -> None:
    """Update destination tables from a flush queue.

    Consumes [flush] queue, into which gateways write the work that follows their flushes.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    job_count = _run(data, stop, once=once)
    output.fields({"done": job_count}, as_json=as_json)


def _run(data: Path | None, stop: threading.Event, *, once: bool) -> int:
    """Process jobs of the queue until `stop` is set, or with `once` until it is empty; return the number of jobs.

    Without `once`, it tries again if the queue or the adapter cannot be reached.

    Raises:
        ConfigurationError: no queue is configured, or the adapter has no tables to update.
        TransientError: with `once`, the queue or the adapter cannot be reached.
    """
    from lakesync.adapters import open_adapter
    from lakesync.adapters.base import Materialisable
    from lakesync.adapters.registry import as_database
    from lakesync.flush import Materialiser, ObjectFlushQueue
    from lakesync.flush.object_queue import open_queue_store
    from lakesync.model.errors import ConfigurationError, TransientError

    flush = load_settings(data).flush
    if not flush.queue or not flush.to_uri:
        raise ConfigurationError(
            "[flush] queue or to_uri is not set; without a queue the gateway updates the tables itself"
        )
    job_count = 0
    with ExitStack() as opening:
        adapter = open_adapter(flush.to_uri)
        opening.callback(adapter.close)
        destination = as_database(adapter, flush.format)
        if not isinstance(destination, Materialisable):
            raise ConfigurationError(
                f"{flush.to_uri.partition(':')[0]} does not keep tables of rows, so there is nothing to update"
            )
        queue = ObjectFlushQueue(open_queue_store(flush.queue, opening))
        while not stop.is_set():
            try:
                job_count += sum(Materialiser(each, queue, destination).run_once() for each in queue.gateways())
            except TransientError as error:
                if once:
                    raise
                output.note(f"the queue cannot be reached, retrying: {error}")
            if once:
                break
            stop.wait(_POLL_SECONDS)
    return job_count
