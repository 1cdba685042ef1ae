"""L1, L3 to L5, L7, L8, R1 to R6: after any events in any order, every client ends with its rows.

`scripts/soak` searches much longer; the failures that it found are examples here.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from tests.property.feed_history import play
from tests.property.feed_steps import RULES, histories, late_skews, skews, with_erased_clients


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
@example(  # a client cannot see its own row, which the rules then show
    history=[
        ("edit", 0, "UPDATE", "r3", {"y": 3, "group": "a", "x": 0}),
        ("edit", 0, "INSERT", "r3", {"y": 3}),
        ("push", 0, "whole"),
        ("rules", 2, 2),
    ],
    skews=(0, 0, 0),
    rules=3,
)
@example(  # rows that a client wrote before its first pull, hidden by new rules
    history=[("edit", 0, "INSERT", "r1", {}), ("push", 0, "whole"), ("rules", 0, 1)],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a page is lost, and the push after it is answered
    history=[
        ("edit", 2, "UPDATE", "r3", {"x": 0, "group": "a", "y": 1}),
        ("edit", 1, "INSERT", "r2", {}),
        ("push", 1, "whole"),
        ("cycle", 2, 2, "answer lost", "whole"),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # additional claims after rules that changed between pages
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
@example(  # every page has a row that the client wrote before its first pull
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
@example(  # an INSERT of a hidden row makes it visible
    history=[
        ("edit", 0, "UPDATE", "r3", {"group": "b", "y": 3, "x": 3}),
        ("rules", 1, 2),
        ("core restart", 1, 1),
        ("core edit", 0, "UPDATE", "r3", {"group": "a", "y": 1}),
    ],
    skews=(0, 0, 0),
    rules=0,
)
@example(  # a bucket is renamed, and a client pulls during the reindex
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
@example(  # a connection breaks before the answer to a push, and its frames are lost
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
@example(  # a row is changed before it is inserted by a client that does not know that it exists
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
@example(  # rows of others are changed again before a client that only pushes has received them
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
@example(  # a row that the old rules hide from its writer is shown by new ones before its keys are reindexed
    history=[
        ("edit", 0, "UPDATE", "r1", {"x": 1, "group": "a", "y": 3}),
        ("cycle", 0, 3, "whole", "whole"),
        ("rules begin", 1, 0),
        ("pull", 0, 2, "whole"),
    ],
    skews=(0, 0, 0),
    rules=5,
)
@example(  # a row that a client lacks is not changed between new rules and its reindex
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
@example(  # the same, and then it is hidden before its reindex
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
@example(  # an offline client inserts a row again that was erased, before it is sent the erasure
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
@example(  # a row that a client has is erased, and inserted again under another key that the client also sees
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
@example(  # the same by a DELETE that is pushed together with the new INSERT
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
@example(  # the same by a DELETE that arrives after newer deltas
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
@example(  # the rules change twice while a client is offline, and its row is deleted before its reindex
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
@example(  # the same for a row that it wrote itself
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
@example(  # a client inserts a row and receives it before its push; meanwhile another client deletes the earlier row
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
@example(  # rules show everything while a client is offline, then hide everything until a row is reindexed
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


@settings(deadline=None, max_examples=50)
@given(history=with_erased_clients(), skews=late_skews, rules=st.integers(0, len(RULES) - 1))
@example(  # after the erasure, the client pushes an earlier edit of a row that others wrote
    history=[
        ("edit", 1, "INSERT", "r1", {"x": 1}),
        ("push", 1, "whole"),
        ("pull", 0, 3, "whole"),
        ("erase client", 0, 0),
        ("pull", 0, 3, "whole"),
        ("pull", 0, 3, "whole"),
        ("edit", 0, "UPDATE", "r1", {"x": 2}),
        ("push", 0, "whole"),
    ],
    skews=(-3_600_000, 0, 0),
    rules=0,
)
def test_every_client_ends_with_what_is_left_after_clients_were_erased(
    history: list[tuple[Any, ...]], skews: tuple[int, ...], rules: int
) -> None:
    play(history, skews, rules)
