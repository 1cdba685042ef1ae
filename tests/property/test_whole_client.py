"""LakeSync's whole client, with writes by plain SQL, in the histories of the core and with the same oracle.

`pytest tests/property/test_whole_client.py --hypothesis-profile soak` searches much longer.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, note, settings

from tests.property.core_history import History
from tests.property.test_client_core import (
    AHEAD,
    CROSSING,
    FORGOTTEN,
    LOST_CURSORS,
    LOST_PAGE,
    LOST_PUSH,
    REFUSED,
    histories,
    skews,
)
from tests.property.whole_client import WholeClient

CHECKPOINT = [
    *[("edit", 1, "SET", "r1", {"x": 1}), ("edit", 1, "SET", "r2", {"y": 2}), ("go", 1), ("go", 1), ("go", 1)],
    *[("cut",), ("edit", 0, "SET", "r1", {"y": 3}), ("go", 0), ("edit", 0, "SET", "r2", {"y": 1}), ("go", 0)],
]
"""A first sync from a checkpoint, while its rows have edits."""
REPLACED = [
    *[("edit", 1, "SET", "r2", {"group": "a"}), ("go", 1), ("go", 1)],
    *[("edit", 1, "DELETE", "r2", {}), ("edit", 1, "SET", "r2", {})],
]
"""A row that is deleted and inserted again before a push: one UPDATE that sets a column to NULL."""


@settings(deadline=None, max_examples=max(12, settings().max_examples // 8), suppress_health_check=list(HealthCheck))
@given(steps=histories, skews=skews)
@example(steps=CHECKPOINT, skews=(0, 0, 0))
@example(steps=REPLACED, skews=(0, 0, 0))
@example(steps=LOST_PAGE, skews=(0, 0, 0))
@example(steps=CROSSING, skews=(0, 0, 0))
@example(steps=LOST_PUSH, skews=(0, 0, 0))
@example(steps=LOST_CURSORS, skews=(0, 0, 0))
@example(steps=FORGOTTEN, skews=(0, 0, 0))
@example(steps=REFUSED, skews=(0, 0, 0))
@example(steps=AHEAD, skews=(0, 0, 60_000))
def test_apps_that_write_by_sql_converge_to_their_visible_rows(
    steps: list[tuple[Any, ...]], skews: tuple[int, ...]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="whole-"))
    history = History(folder, skews, 3, partial(WholeClient, folder=folder))
    note(f"{steps=} {skews=}")
    try:
        history.play(steps)
    finally:
        history.close()
        for player in history.players:
            assert isinstance(player.client, WholeClient)
            player.client.close()
        shutil.rmtree(folder)
