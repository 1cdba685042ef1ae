"""LakeSync's client core converges against a gateway in this process, despite losses, repeats, rejections and restarts.

`pytest tests/property/test_client_core.py --hypothesis-profile soak` searches much longer.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, note, settings

from tests.property.core_history import GROUPS, PEOPLE, ROWS, RULES, History

people = st.integers(0, len(PEOPLE) - 1)
values = st.fixed_dictionaries(
    {},
    optional={
        "group": st.sampled_from(GROUPS),
        "x": st.integers(0, 3),
        "y": st.integers(0, 3),
        "z": st.just(0),
    },
)
edit = st.tuples(
    st.just("edit"), people, st.sampled_from(["SET", "SET", "SET", "DELETE"]), st.sampled_from(ROWS), values
)
whole = st.tuples(st.just("go"), people)
part = st.tuples(st.sampled_from(["start", "execute", "execute", "answer", "answer", "lose", "busy", "again"]), people)
trouble = st.one_of(
    st.tuples(st.sampled_from(["restart", "drop", "retry", "forget_client"]), people),
    st.tuples(st.sampled_from(["connect", "broadcast", "deliver", "disconnect"]), people),
    st.tuples(st.just("skew"), people, st.sampled_from([-30, -3, 0, 3, 60_000])),
    st.tuples(st.just("claims"), people, st.sampled_from(GROUPS)),
    st.tuples(st.just("rules"), st.integers(0, len(RULES) - 1)),
    st.tuples(st.sampled_from(["server", "schema", "cut", "pass"])),
)
steps = st.one_of(edit, edit, whole, whole, part, part, trouble)
histories = st.integers(0, 60).flatmap(
    lambda size: st.lists(steps, min_size=size, max_size=size)
)  # otherwise they are short
skews = st.tuples(*[st.sampled_from([-30, -3, 0, 3])] * 3)

WHOLE = [("go", 1), ("go", 1), ("go", 1)]
LOST_PAGE = [
    *[("edit", 1, "SET", "r2", {"x": 1}), *WHOLE, ("go", 0), ("go", 0)],
    *[("edit", 1, "SET", "r3", {"x": 2}), ("go", 1), ("start", 0), ("execute", 0), ("lose", 0)],
    *[("edit", 0, "SET", "r1", {"x": 1}), ("go", 0)],
]
"""A page with r3 is lost, and the answer to the next push has a cursor that covers it."""
CROSSING = [
    *[("edit", 1, "SET", "r1", {"x": 1}), *WHOLE, ("connect", 0), ("go", 0), ("go", 0), ("go", 2), ("go", 2)],
    *[("edit", 2, "DELETE", "r1", {}), ("edit", 1, "SET", "r1", {"y": 1}), ("go", 1), ("broadcast", 0)],
    *[("deliver", 0), ("go", 2), ("broadcast", 0), ("edit", 0, "SET", "r1", {"x": 3}), ("go", 0), ("deliver", 0)],
]
"""A broadcast that sends r1 again was made before a push of r1, and arrives after its answer."""
LOST_PUSH = [
    *[("rules", 1), ("edit", 2, "SET", "r1", {"group": "a"}), ("go", 2), ("go", 2), ("go", 2), ("go", 0), ("go", 0)],
    *[("edit", 0, "SET", "r1", {"y": 1}), ("start", 0), ("execute", 0), ("lose", 0)],
    *[("edit", 2, "SET", "r1", {"group": "b"}), ("go", 2), ("go", 0), ("go", 0)],
]
"""A push's answer is lost, and then its row becomes hidden."""
LOST_CURSORS = [
    *[("rules", 1), ("edit", 2, "SET", "r1", {"group": "a"}), ("go", 2), ("go", 2), ("go", 2), ("go", 0), ("go", 0)],
    *[("forget_client", 0), ("edit", 2, "SET", "r1", {"group": "b"}), ("go", 2)],
]
"""The gateway no longer knows which rows it sent to a client, and these rows are hidden."""
FORGOTTEN = [
    *[("rules", 1), ("go", 1), ("go", 1), ("edit", 2, "SET", "r2", {"group": "b"}), ("go", 2), ("go", 2), ("go", 2)],
    *[("go", 1), ("forget_client", 1), ("claims", 1, "a"), ("edit", 0, "SET", "r1", {"group": "b"})],
    *[("go", 0), ("go", 0), ("go", 0), ("go", 1), ("go", 1)],
]
"""The gateway no longer knows a client's rows; its claims change before a row enters its old bucket."""
REFUSED = [("edit", 0, "SET", "r1", {"z": 0}), ("schema",), ("go", 0), ("go", 0), ("go", 0)]
AHEAD = [
    *[("edit", 0, "SET", "r1", {}), ("edit", 2, "SET", "r2", {}), ("go", 2)],
    ("edit", 2, "SET", "r2", {"group": "a"}),
]
"""A clock that was ahead is corrected while the app's newest write is not recorded as an edit yet."""
BURIED = [
    *[("edit", 1, "SET", "r1", {"group": "a", "z": 0}), ("edit", 1, "DELETE", "r1", {})],
    *[("edit", 1, "SET", "r1", {}), ("schema",)],
]
"""A refused edit is older than an accepted DELETE of the same client."""
UNKNOWN_BUCKET = [("go", 0), ("go", 0), ("edit", 0, "SET", "r1", {}), ("go", 0), ("rules", 1)]
"""A client pushes before its first pull, and then the rules hide its row."""


@settings(deadline=None)
@given(steps=histories, skews=skews, page=st.integers(1, 3))
@example(steps=LOST_PAGE, skews=(0, 0, 0), page=3)
@example(steps=CROSSING, skews=(0, 0, 0), page=3)
@example(steps=LOST_PUSH, skews=(0, 0, 0), page=3)
@example(steps=LOST_CURSORS, skews=(0, 0, 0), page=3)
@example(steps=FORGOTTEN, skews=(0, 0, 0), page=3)
@example(steps=REFUSED, skews=(0, 0, 0), page=3)
@example(steps=AHEAD, skews=(0, 0, 60_000), page=3)
@example(steps=BURIED, skews=(0, 0, 0), page=1)
@example(steps=UNKNOWN_BUCKET, skews=(0, 0, 0), page=3)
def test_every_client_converges_to_its_visible_rows(
    steps: list[tuple[Any, ...]], skews: tuple[int, ...], page: int
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="core-"))
    history = History(folder, skews, page)
    note(f"{steps=} {skews=} {page=}")
    try:
        history.play(steps)
    finally:
        history.close()
        shutil.rmtree(folder)
