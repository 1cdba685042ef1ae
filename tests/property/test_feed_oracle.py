"""L1, L3 to L5, L7, L8, R1 to R6: whatever happens, in which order, every client ends with its rows.

`scripts/soak` looks much longer. What it found is kept here as examples.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from tests.property.feed_history import play
from tests.property.feed_steps import RULES, histories, skews


@settings(deadline=None, max_examples=150)
@given(history=histories, skews=skews, rules=st.integers(0, len(RULES) - 1))
@example(
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("cycle", 0, 1, "whole", "whole"),
        ("edit", 0, "UPDATE", "r2", {"group": "a"}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # blind to its own row, which the rules then show
    history=[
        ("edit", 0, "UPDATE", "r3", {"y": 3, "group": "a", "x": 0}),
        ("edit", 0, "INSERT", "r3", {"y": 3}),
        ("push", 0, "whole"),
        ("rules", 2, 2),
    ],
    skews=(0, 0, 0),
    rules=3,
)
@example(  # what a client wrote before it was given anything, hidden by new rules
    history=[("edit", 0, "INSERT", "r1", {}), ("push", 0, "whole"), ("rules", 0, 1)],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a page is lost, and the push behind it is answered
    history=[
        ("edit", 2, "UPDATE", "r3", {"x": 0, "group": "a", "y": 1}),
        ("edit", 1, "INSERT", "r2", {}),
        ("push", 1, "whole"),
        ("cycle", 2, 2, "answer lost", "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # claims that grow after rules that changed in the middle of pages
    history=[
        ("edit", 0, "INSERT", "r2", {"x": 0, "y": 3, "group": "a"}),
        ("edit", 1, "INSERT", "r3", {}),
        ("rules", 1, 4),
        ("cycle", 0, 1, "whole", "whole"),
        ("cycle", 1, 1, "whole", "answer lost"),
        ("claims", 1, 2),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # what a client wrote before it was given anything is met on every page
    history=[
        ("edit", 1, "INSERT", "r1", {}),
        ("edit", 1, "INSERT", "r2", {}),
        ("cycle", 1, 1, "whole", "whole"),
        ("edit", 0, "INSERT", "r1", {"group": "b", "y": 0}),
        ("rules begin", 0, 1),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # an INSERT of a row that was there already, out of sight, brings it into sight
    history=[
        ("edit", 0, "UPDATE", "r3", {"group": "b", "y": 3, "x": 3}),
        ("rules", 1, 2),
        ("core restart", 1, 1),
        ("core edit", 0, "UPDATE", "r3", {"group": "a", "y": 1}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a bucket gets another name, and a client pulls in the middle of it
    history=[
        ("edit", 0, "INSERT", "r1", {"group": "a"}),
        ("edit", 0, "INSERT", "r2", {"group": "a", "x": 2}),
        ("cycle", 0, 3, "whole", "whole"),
        ("pull", 2, 3, "whole"),
        ("rules begin", 0, 5),
        ("reindex", 0, 1),
        ("pull", 2, 3, "whole"),
        ("rules begin", 0, 2),
        ("pull", 2, 3, "answer lost"),
        ("edit", 0, "UPDATE", "r1", {"y": 1}),
        ("cycle", 0, 3, "whole", "whole"),
        ("pull", 2, 3, "whole"),
        ("reindex", 0, 1),
        ("restart", 0, 1),
        ("pull", 2, 1, "whole"),
        ("checkpoint", 1, 2),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # a connection breaks before the answer to a push, and takes what was sent on it along
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("push", 0, "whole"),
        ("connect", 1, 3),
        ("edit", 0, "INSERT", "r3", {}),
        ("push", 0, "whole"),
        ("broadcast", 1, 3),
        ("edit", 1, "INSERT", "r2", {}),
        ("push cut", 1, 1),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a row is changed before it is inserted by one who does not know that it is there
    history=[
        ("edit", 2, "UPDATE", "r1", {"y": 1, "group": "b", "x": 1}),
        ("edit", 0, "INSERT", "r1", {}),
        ("edit", 2, "INSERT", "r1", {}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # the same in two pushes
    history=[
        ("edit", 0, "INSERT", "r1", {}),
        ("push", 0, "whole"),
        ("edit", 2, "UPDATE", "r1", {"y": 1}),
        ("push", 2, "whole"),
        ("edit", 2, "INSERT", "r1", {}),
        ("push", 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # what others made is changed again before a client that pushes has heard of it
    history=[
        ("edit", 2, "DELETE", "r1", {}),
        ("cycle", 2, 3, "request lost", "answer lost"),
        ("edit", 0, "UPDATE", "r2", {"y": 0}),
        ("pull", 2, 2, "whole"),
        ("push", 0, "whole"),
        ("edit", 0, "INSERT", "r2", {}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a row that the old rules hide from its writer is shown by new ones before its keys agree with them
    history=[
        ("edit", 0, "UPDATE", "r1", {"x": 1, "group": "a", "y": 3}),
        ("cycle", 0, 3, "whole", "whole"),
        ("rules begin", 1, 0),
        ("pull", 0, 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=5,
)
@example(  # a row that a client lacks is changed by nobody between new rules and being in line with them
    history=[
        ("edit", 0, "UPDATE", "r1", {"x": 1, "group": "a"}),
        ("pull", 2, 3, "whole"),
        ("push", 0, "whole"),
        ("rules begin", 2, 3),
        ("pull", 2, 1, "whole"),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # the same, and then it is hidden before it is in line
    history=[
        ("edit", 0, "UPDATE", "r2", {"x": 1, "group": "a"}),
        ("push", 0, "whole"),
        ("pull", 2, 3, "whole"),
        ("edit", 0, "UPDATE", "r1", {"x": 1, "group": "a"}),
        ("push", 0, "whole"),
        ("rules begin", 2, 3),
        ("pull", 2, 1, "whole"),
        ("edit", 0, "UPDATE", "r1", {"group": "b"}),
        ("push", 0, "whole"),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # a client that was away makes a row again that was erased, before it is sent that
    history=[
        ("edit", 1, "INSERT", "r1", {"x": 1}),
        ("push", 1, "whole"),
        ("erase", 0, 1),
        ("edit", 0, "INSERT", "r1", {"x": 2}),
        ("push", 0, "whole"),
    ],
    skews=(-30, 0, 0),
    rules=0,
)
@example(  # a row that a client has is erased, and comes back under another key that it sees too
    history=[
        ("core edit", 2, "UPDATE", "r1", {"y": 1, "group": "a", "x": 2}),
        ("core", 4, "whole"),
        ("core claims", 2, 2),
        ("erase", 1, 1),
        ("edit", 1, "UPDATE", "r1", {"group": "b", "x": 3}),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # the same by a DELETE that is pushed with what makes the row again
    history=[
        ("edit", 0, "INSERT", "r1", {"y": 1, "group": "a", "x": 2}),
        ("push", 0, "whole"),
        ("claims", 2, 2),
        ("pull", 2, 3, "whole"),
        ("edit", 1, "DELETE", "r1", {}),
        ("edit", 1, "UPDATE", "r1", {"group": "b", "x": 3}),
        ("push", 1, "whole"),
    ],
    skews=(0, 0, 0),
    rules=1,
)
@example(  # the same by a DELETE that comes after what is newer than it
    history=[
        ("edit", 0, "INSERT", "r1", {"y": 1, "group": "a", "x": 2}),
        ("push", 0, "whole"),
        ("claims", 2, 2),
        ("pull", 2, 3, "whole"),
        ("edit", 0, "UPDATE", "r1", {"group": "b"}),
        ("push", 0, "whole"),
        ("edit", 1, "DELETE", "r1", {}),
        ("push", 1, "whole"),
    ],
    skews=(0, -3, 0),
    rules=1,
)
@example(  # the rules change twice while a client is away, and what it has is deleted before it is in line again
    history=[
        ("edit", 2, "INSERT", "r2", {"group": "a", "x": 1}),
        ("cycle", 2, 1, "whole", "whole"),
        ("cycle", 0, 3, "whole", "whole"),
        ("cycle", 0, 3, "whole", "whole"),
        ("rules", 2, 2),
        ("rules begin", 0, 4),
        ("pull", 0, 3, "whole"),
        ("edit", 2, "DELETE", "r2", {}),
        ("push", 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # the same of a row that it wrote itself
    history=[
        ("connect", 0, 1),
        ("edit", 0, "UPDATE", "r2", {"group": "a", "x": 1}),
        ("push connected", 0, 3),
        ("rules", 2, 2),
        ("rules begin", 0, 4),
        ("edit", 1, "DELETE", "r2", {"group": "a", "y": 0}),
        ("cycle", 0, 1, "whole", "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a client inserts a row that it comes to have before that is pushed; meanwhile another deletes what it was
    history=[
        ("edit", 2, "DELETE", "r1", {}),
        ("disconnect", 1),
        ("edit", 1, "UPDATE", "r1", {"y": 2, "group": "a", "x": 1}),
        ("core edit", 0, "UPDATE", "r1", {"group": "a"}),
        ("core", 1, "whole"),
        ("push", 1, "whole"),
        ("core", 1, "whole"),
    ],
    skews=(-30, -30, 3),
    rules=0,
)
@example(  # rules show everything while a client is away, then show it nothing until a row is in line
    history=[
        ("edit", 0, "INSERT", "r1", {"group": "a", "x": 2}),
        ("push", 0, "whole"),
        ("core", 2, "whole"),
        ("rules", 0, 0),
        ("rules begin", 0, 5),
    ],
    skews=(0, 0, 0),
    rules=1,
)
def test_every_client_ends_with_its_rows(history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int) -> None:
    play(history, skews, rules)
