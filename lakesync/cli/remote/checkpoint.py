"""`lakesync checkpoint`: shows and fetches the checkpoint, the snapshot of all rows from which new clients start.

The pipeline writes a checkpoint after a flush, and the gateway serves the newest one. Its *arrival* is a timestamp of
the gateway: the snapshot has all changes up to it. It is sent as *frames*: protobuf messages with the rows, as INSERT
deltas, each with a length before it.

A parameter `options: ConnectionOptions` adds the options that choose gateway and token, from `--url` to `--data`. A
gateway is one app's stream of changes; `{gateway}` in the path of a request is its id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from lakesync.cli import output
from lakesync.cli.commands import Client, ConnectionOptions, Json, command_app, examples
from lakesync.model.errors import NotFoundError
from lakesync.model.hlc import wall_of

checkpoint_app = command_app(
    "Show and fetch the checkpoint of new clients.",
    examples(("lakesync checkpoint show", "its age and size"), ("lakesync checkpoint fetch frames.bin", "")),
)


@checkpoint_app.command(
    epilog=examples(
        ("lakesync checkpoint show --gateway shop", "its arrival, size, and whether it is served"),
        ("lakesync flush && lakesync checkpoint show", "each flush of a pipeline writes one"),
    )
)
def show(*, options: ConnectionOptions, as_json: Json = False) -> None:
    """Show the newest checkpoint, and whether it is served.

    A checkpoint is not served if sync rules were activated, data was erased or the store was rebuilt after it;
    `lakesync flush` writes a new one. Exits with 1 if there is no checkpoint.
    """
    metrics = options.connect().get("/admin/metrics/{gateway}", clients=0)  # without a list of clients
    newest = metrics["checkpoint"]
    if newest is None:
        raise NotFoundError(
            "there is no checkpoint yet, so new clients pull all rows; the first flush of a pipeline writes one"
        )
    arrival_ms = wall_of(int(newest["arrivalHlc"]))
    details = {
        **newest,
        "asOf": output.utc_time(arrival_ms),
        "createdAt": output.utc_time(newest["createdMs"]),
        "ageSeconds": round(time.time() - arrival_ms / 1000, 1),
        "served": newest["notServedReason"] is None,
    }
    if as_json:
        output.print_json(details)
        return
    served = "yes" if details["served"] else f"no: {newest['notServedReason']}"
    output.print_fields(
        {
            "as of": f"{details['asOf']}, {output.duration(details['ageSeconds'])} ago",
            "written": details["createdAt"],
            "rows": f"{newest['rows']:,} of {', '.join(newest['tables']) or 'no table'}",
            "bytes": f"{newest['bytes']:,}",
            "rules": f"version {newest['rulesVersion']}",
            "served": served,
        },
        as_json=False,
    )


@checkpoint_app.command(
    epilog=examples(
        ("lakesync checkpoint fetch frames.bin --client new-phone", "as that client receives it"),
        ("lakesync checkpoint fetch --client new-phone --json", "only its size"),
    )
)
def fetch(
    file: Annotated[Path | None, typer.Argument(help="File for the frames; default: only count them.")] = None,
    client: Client = None,
    *,
    options: ConnectionOptions,
    as_json: Json = False,
) -> None:
    """Fetch and verify the newest checkpoint as a client.

    It contains only the rows that the client may see. The gateway counts the client as seen. FILE appears when it is
    complete.
    """
    from lakesync.wire.frames import encode_checkpoint_frame
    from lakesync.wire.protobuf import decode_response

    remote = options.connect(role="client", client=client)
    frames, deltas, size = 0, 0, 0
    with output.spinner("fetching"), ExitStack() as closing:
        out = closing.enter_context(_atomic_file(file)) if file is not None else None
        checkpoint = closing.enter_context(remote.transport.checkpoint(client or remote.client_id))
        for frame in checkpoint.frames:
            frames, deltas, size = frames + 1, deltas + len(decode_response(frame).deltas), size + len(frame)
            if out is not None:
                out.write(encode_checkpoint_frame(frame))
    summary = {"cursor": str(checkpoint.cursor), "frames": frames, "deltas": deltas, "bytes": size}
    output.print_fields(summary, as_json=as_json)


@contextmanager
def _atomic_file(file: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `file` when the context ends, and that is deleted after an error.

    Raises:
        typer.BadParameter: the file cannot be written.
    """
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder; name a file in it")
    temporary = file.with_name(file.name + ".part")
    try:
        out = temporary.open("wb")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from error
    try:
        with out:
            yield out
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
