"""Helpers to write a fixed history: its setting and its steps. The modules `cases_of_…` list such histories."""

from __future__ import annotations

from tests.blackbox.run import Case
from tests.blackbox.steps import MANY_TEAMS, Step

A = {"team": ["a"], "kinds": ["p"], "level": "0"}
B = {"team": ["b"], "kinds": ["q"], "level": "1"}


def case(
    kinds: str, rules: int, *steps: Step, limit: int = 1000, fill: str = "", ids: str = "hash", **more: object
) -> Case:
    """Return a history of clients of these kinds: the first has the claims A, the others B.

    A client with a WebSocket sends its request after a broadcast arrived, if one arrives, and before it applies that.
    """
    clients = [(kind, A if place == 0 else B, 0) for place, kind in enumerate(kinds.split())]
    setting = {"clients": clients, "rules": rules, "ids": ids, "fill": fill, "last limit": limit}
    return Case({**setting, "late": 0.5, "waits": False, **more}, list(steps))


def edit(who: int, op: str, row: str, tick: int = 1, **values: object) -> Step:
    table, _, row_id = row.partition("/")
    return ("edit", who, op, table, row_id, values, tick)


def pull(who: int, limit: int = 1000, delivery: str = "whole") -> Step:
    return ("pull", who, limit, delivery)


def push(who: int, delivery: str = "whole") -> Step:
    return ("push", who, delivery)


def claims(who: int, **changed: object) -> Step:
    return ("claims", who, {**A, **changed})


C = {**A, "team": ["c"]}
SIX = [edit(1, "INSERT", f"notes/n{number}", team="a") for number in range(6)]
THREE = [edit(1, "INSERT", f"notes/r{number}", team="f") for number in (3, 4, 5)]
NINE = [
    step for x in range(9) for step in (("device", 1, "stock"), edit(1, "UPDATE", "tasks/r1", x=x), push(1))
]  # fmt: skip
"""One row is written by nine clients."""

GLIMPSE = [
    edit(1, "UPDATE", "tasks/r1", team="c"), push(1), edit(1, "UPDATE", "tasks/r1", team="z"), push(1),
    edit(1, "INSERT", "notes/n2", team="c"), push(1),
]  # fmt: skip
"""A row becomes visible to C and hidden again, then another row becomes visible."""

IN_TURNS = [
    step
    for number in range(16)
    for step in (
        edit(1, "UPDATE", "notes/r2", team="t0", x=number), push(1),
        ("other token", 0, {**A, "team": [*MANY_TEAMS, "uv"[number % 2]]}, 1000),
    )
]  # fmt: skip
"""Tokens with many teams alternate, more often than a record keeps scopes."""

TOKENS_IN_TURNS = [("other token", 0, C, 1000), ("other token", 0, A, 1000)] * 5
"""Two tokens alternate, more often than a record keeps scopes."""
