"""`lakesync checkpoint`: what a new client starts from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from lakesync.cli import output
from lakesync.cli.lazy_commands import command_app, examples
from lakesync.cli.options import Data, Gateway, Json, TokenFile, Url

app = command_app(
    "Look at what a new client starts from, and fetch it.",
    examples(("lakesync checkpoint show", "how old it is"), ("lakesync checkpoint fetch frames.bin", "")),
)


@app.callback()
def checkpoint() -> None:
    """Look at what a new client starts from, and fetch it."""


@app.command(
    epilog=examples(
        ("lakesync checkpoint show --gateway shop", "as of when, how much, and whether it is served"),
        ("lakesync flush && lakesync checkpoint show", "each flush of a pipeline makes a new one"),
    )
)
def show(
    url: Url = None, gateway: Gateway = None, token_file: TokenFile = None, data: Data = None, *, as_json: Json = False
) -> None:
    """Show the newest checkpoint, and whether it is served.

    Exit code 1: there is none. One is served while no newer rules are in force.
    """
    from lakesync.cli.connection import connect
    from lakesync.model.errors import NotFoundError

    told = connect(url, gateway, token_file, data).get("/admin/metrics/{gateway}", clients=0)
    cut = told["cut"]
    if cut is None:
        raise NotFoundError(
            "there is no checkpoint yet, new clients pull from 0: the first flush of a pipeline makes one"
        )
    arrival = int(cut["arrivalHlc"]) >> 16
    found = {
        **cut,
        "asOf": output.moment(arrival),
        "createdAt": output.moment(cut["createdMs"]),
        "ageSeconds": round(time.time() - arrival / 1000, 1),
        "served": cut["rulesVersion"] == told["rulesVersion"],
    }
    if as_json:
        output.record(found)
        return
    why = "" if found["served"] else f": the rules in force are version {told['rulesVersion']}; flush to make a new one"
    output.facts(
        {
            "as of": f"{found['asOf']}, {output.ago(found['ageSeconds'])} ago",
            "written": found["createdAt"],
            "rows": f"{cut['rows']:,} of {', '.join(cut['tables']) or 'no table'}",
            "bytes": f"{cut['bytes']:,}",
            "rules": f"version {cut['rulesVersion']}",
            "served": ("yes" if found["served"] else "no") + why,
        },
        as_json=False,
    )


@app.command(
    epilog=examples(
        ("lakesync checkpoint fetch frames.bin --client new-phone", "as that client would get it"),
        ("lakesync checkpoint fetch --client new-phone --json", "only how much it is"),
    )
)
def fetch(
    file: Annotated[
        Path | None, typer.Argument(help="Where the frames go; none: they are read and counted.", show_default=False)
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", "-c", help="As whom; else the token's sub.", show_default=False)
    ] = None,
    url: Url = None,
    gateway: Gateway = None,
    token_file: TokenFile = None,
    data: Data = None,
    *,
    as_json: Json = False,
) -> None:
    """Fetch the newest checkpoint as a client would, cut down to what it may see, and check that it is whole.

    The gateway counts the client as seen by it, as it does any that fetches one. FILE appears when all of it is there.
    """
    from lakesync.cli.connection import connect
    from lakesync.wire.frames import encode_checkpoint_frame
    from lakesync.wire.protobuf import decode_response

    remote = connect(url, gateway, token_file, data, role="client", client=client)
    frames, deltas, size = 0, 0, 0
    with output.working("fetching"), ExitStack() as closing:
        out = closing.enter_context(_written_whole(file)) if file is not None else None
        came = closing.enter_context(remote.transport().checkpoint(client or remote.client_id))
        for frame in came.frames:
            frames, deltas, size = frames + 1, deltas + len(decode_response(frame).deltas), size + len(frame)
            if out is not None:
                out.write(encode_checkpoint_frame(frame))
    told = {"cursor": str(came.cursor), "frames": frames, "deltas": deltas, "bytes": size}
    output.facts(told, as_json=as_json)


@contextmanager
def _written_whole(file: Path) -> Iterator[BinaryIO]:
    """A file that takes another's place when all of it is written, and leaves nothing where it never is.

    Raises:
        typer.BadParameter: it cannot be written.
    """
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder: name a file in it")
    scratch = file.with_name(file.name + ".part")
    try:
        out = scratch.open("wb")
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from error
    try:
        with out:
            yield out
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
