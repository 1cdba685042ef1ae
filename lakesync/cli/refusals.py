"""What a gateway refuses of a push, named on stderr, and what to do about it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lakesync.cli import output

if TYPE_CHECKING:
    from lakesync.model.errors import Rejection
    from lakesync.model.types import RowDelta

_NAMED = 20
"""Refusals that are named one by one to people; programs are told all of them."""


class Refusals:
    """Gathered over the requests of one push."""

    def __init__(self, who: str, *, as_json: bool) -> None:
        """Args: who: as whom it is pushed."""
        self._who = who
        self._as_json = as_json
        self._codes: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._codes.total()

    def tell(self, deltas: Sequence[RowDelta], refused: Sequence[Rejection]) -> None:
        """Name what was refused of these deltas."""
        by_id = {delta.delta_id: delta for delta in deltas} if refused else {}
        for each in refused:
            self._codes[each.code] += 1
            delta = by_id.get(each.delta_id)  # a gateway may name one that was never sent
            if self._as_json:
                names = {"deltaId": each.delta_id, **({"table": delta.table, "rowId": delta.row_id} if delta else {})}
                print(json.dumps({"refused": {**names, "code": each.code, "message": each.message}}), file=sys.stderr)
            elif len(self) <= _NAMED:
                row = f"row {delta.row_id!r} of {delta.table}" if delta else "a row that was not sent"
                output.note(f"refused {row}: {each.code}: {each.message} (delta {each.delta_id})")

    def end(self) -> None:
        """Say what was not named, and what may help."""
        if not self._as_json and len(self) > _NAMED:
            kinds = ", ".join(f"{count:,} {code}" for code, count in self._codes.most_common())
            output.note(f"refused {len(self):,} in all ({kinds}); --json names each")
        if self._codes["FORBIDDEN"] and not self._as_json:
            output.note(
                f"  try: the rules show client {self._who!r} no such rows. Push as somebody whom they show them to: "
                "--client ID, and --claim NAME=VALUE where they read claims; `lakesync rules show` has them"
            )
