"""Journal of acknowledged pushes: one append-only file per client, one line per push, written after its response.

`truth.py` computes from it what every client and the lake must have.
"""

from __future__ import annotations

import itertools
from pathlib import Path

_HEAD = '{{"order":{},"step":{},"day":"{}","server_hlc":"{}","push":'


class Journal:
    """The journal of one run. Clients write concurrently, each to its own file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._order = itertools.count()
        self.pushes = 0
        """How many pushes were acknowledged so far, or a few less."""

    def acknowledged(self, client: str, step: int, day: str, server_hlc: str, body: bytes) -> None:
        """Append a push after its answer, with the body as sent."""
        order = next(self._order)
        self.pushes = order + 1
        head = _HEAD.format(order, step, day, server_hlc).encode()
        with (self.folder / f"{client}.jsonl").open("ab", buffering=0) as file:
            file.write(head + body + b"}\n")

    @property
    def pattern(self) -> str:
        """Return a glob pattern for every file of the journal."""
        return str(self.folder / "*.jsonl")
