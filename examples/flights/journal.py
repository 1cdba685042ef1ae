"""What each client was acknowledged: one append-only file a client, one line a push, written after its answer."""

from __future__ import annotations

import itertools
from pathlib import Path

_HEAD = '{{"order":{},"step":{},"day":"{}","server_hlc":"{}","push":'


class Journal:
    """The files of one run; several clients write at once, each into its own file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._order = itertools.count()
        self.pushes = 0
        """How many pushes were acknowledged so far, or a few less."""

    def acknowledged(self, client: str, step: int, day: str, server_hlc: str, body: bytes) -> None:
        """Add a push whose answer has just come, with the body as it was sent."""
        order = next(self._order)
        self.pushes = order + 1
        head = _HEAD.format(order, step, day, server_hlc).encode()
        with (self.folder / f"{client}.jsonl").open("ab", buffering=0) as file:
            file.write(head + body + b"}\n")

    @property
    def pattern(self) -> str:
        """What matches every file of the journal."""
        return str(self.folder / "*.jsonl")
