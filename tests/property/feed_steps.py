"""The steps of a history of the feed: edits, cycles, broadcasts, rules, and failures of every kind."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st

from lakesync.rules.model import SyncRules, parse_rules

ROWS = ["r1", "r2", "r3"]
GROUPS = [["a"], ["b"], ["a", "b"]]


def rules_of(*buckets: tuple[str, list[tuple[str, str, str]]]) -> SyncRules:
    spelled = [
        {
            "name": name,
            "tables": [],
            "filters": [dict(zip(("column", "op", "value"), one, strict=True)) for one in some],
        }
        for name, some in buckets
    ]
    return parse_rules({"version": 1, "buckets": spelled})


RULES = [
    rules_of(),
    rules_of(("mine", [("group", "eq", "jwt:group")])),
    rules_of(("own", [("group", "eq", "jwt:group")])),
    rules_of(("mine", [("group", "eq", "jwt:group"), ("x", "eq", "1")])),
    rules_of(("mine", [("group", "eq", "jwt:group")]), ("ones", [("x", "eq", "1")])),
    rules_of(("mine", [("group", "eq", "jwt:group"), ("x", "gt", "jwt:level")])),
]

people = st.integers(0, 2)
ways = st.sampled_from(["whole", "whole", "answer lost", "request lost"])
limits = st.integers(1, 3)
values = st.fixed_dictionaries(
    {}, optional={"group": st.sampled_from(["a", "b"]), "x": st.integers(0, 3), "y": st.integers(0, 3)}
)
edit = st.tuples(
    st.just("edit"), people, st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]), st.sampled_from(ROWS), values
)

core = st.one_of(
    st.tuples(
        st.just("core edit"), people, st.sampled_from(["UPDATE", "UPDATE", "DELETE"]), st.sampled_from(ROWS), values
    ),
    st.tuples(st.just("core"), st.sampled_from([1, 2, 4]), ways),
    st.tuples(st.just("core"), st.sampled_from([1, 2, 4]), ways),
    st.tuples(st.just("core claims"), people, st.integers(0, len(GROUPS) - 1)),
    st.tuples(st.just("core restart"), people, limits),
)
cycle = st.tuples(st.just("cycle"), people, limits, ways, ways)
pull = st.tuples(st.just("pull"), people, limits, ways)
push = st.tuples(st.just("push"), people, ways)
live = st.tuples(st.sampled_from(["broadcast", "broadcast", "deliver", "push connected", "push cut"]), people, limits)
rules = st.one_of(
    st.tuples(st.sampled_from(["rules", "rules begin"]), people, st.integers(0, len(RULES) - 1)),
    st.tuples(st.just("reindex"), people, limits),
    st.tuples(st.just("claims"), people, st.integers(0, len(GROUPS) - 1)),
)
trouble = st.one_of(
    st.tuples(st.sampled_from(["connect", "disconnect", "reload", "wipe", "old pull", "old push"]), people, limits),
    st.tuples(
        st.sampled_from(["restart", "idle", "idle", "flush", "cut", "checkpoint", "erase", "crash"]), people, limits
    ),
    st.tuples(st.just("clock"), people, st.sampled_from([-40, 40, -3_600_000, 3_600_000])),
)


def _lists(steps: st.SearchStrategy[tuple[Any, ...]]) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.integers(0, 30).flatmap(lambda size: st.lists(steps, min_size=size, max_size=size))


histories = st.one_of(
    _lists(st.one_of(edit, edit, cycle, cycle, pull, push, live, rules, trouble)),
    _lists(st.one_of(edit, cycle, pull, rules)),
    _lists(st.one_of(edit, cycle, push, core, core, rules, trouble)),
    _lists(st.one_of(edit, cycle, pull, push, live, trouble)),
)
skews = st.tuples(*[st.sampled_from([-30, -3, 0, 3])] * 3)


@st.composite
def troubled(draw: st.DrawFn, trouble: st.SearchStrategy[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A history with several failures of one kind between its steps."""
    history = list(draw(histories))
    for step in draw(st.lists(trouble, min_size=1, max_size=4)):
        history.insert(draw(st.integers(0, len(history))), step)
    return history


late_skews = st.tuples(*[st.sampled_from([-3_600_000, -30, 0])] * 3)
"""Some clients' edits are older than any erasure."""
_CHANGES_OF_ACCESS = frozenset({"rules", "rules begin", "claims", "core claims"})


@st.composite
def with_erased_clients(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """A history in which clients are erased. No access changes: what an erased client saw earlier is not kept."""
    history = draw(troubled(st.tuples(st.just("erase client"), people, st.just(0))))
    return [step for step in history if step[0] not in _CHANGES_OF_ACCESS]
