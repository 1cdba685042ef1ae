"""Histories that once ended in a wrong client, as small as they get."""

from __future__ import annotations

import pytest

from tests.blackbox.run import Case, wrong
from tests.blackbox.server import Server
from tests.blackbox.steps import MANY_TEAMS, Step

TWO = ({"team": ["a"], "kinds": ["p"], "level": "0"}, {"team": ["b"], "kinds": ["q"], "level": "1"})
A, B = TWO


def case(
    kinds: str, rules: int, *steps: Step, limit: int = 1000, fill: str = "", ids: str = "hash", **more: object
) -> Case:
    """Clients of these kinds, the first with the claims A, the others with B.

    One with a WebSocket asks on it after a broadcast came, if one comes, and before it takes that.
    """
    clients = [(kind, A if place == 0 else B, 0) for place, kind in enumerate(kinds.split())]
    setting = {"clients": clients, "rules": rules, "ids": ids, "fill": fill, "last limit": limit}
    return Case({**setting, "late": 0.5, "waits": False, **more}, list(steps))


def edit(who: int, op: str, row: str, tick: int = 1, **values: object) -> Step:
    table, _, row_id = row.partition("/")
    return ("edit", who, op, table, row_id, values, tick)


def pull(who: int, limit: int = 1000, fate: str = "whole") -> Step:
    return ("pull", who, limit, fate)


def push(who: int, fate: str = "whole") -> Step:
    return ("push", who, fate)


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
"""A row comes into sight of C and leaves it again, then another one comes."""

IN_TURNS = [
    step
    for number in range(16)
    for step in (
        edit(1, "UPDATE", "notes/r2", team="t0", x=number), push(1),
        ("other token", 0, {**A, "team": [*MANY_TEAMS, "uv"[number % 2]]}, 1000),
    )
]  # fmt: skip
"""Tokens with many teams come in turns, more often than a record keeps scopes."""

TOKENS_IN_TURNS = [("other token", 0, C, 1000), ("other token", 0, A, 1000)] * 5
"""Two tokens come in turns, more often than a record keeps scopes."""

CASES = {
    "claims change between two pages": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"), push(1),
        pull(0, 1), claims(0, team="b"),
    ),
    "a client starts again after its tokens with many teams came in turns": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/t2", team="c"), push(1), claims(0, team="c"), pull(0),
        edit(1, "INSERT", "notes/r1", team="a"), push(1), claims(0), pull(0),
        *IN_TURNS, claims(0, team="t0"), ("reload", 0),
    ),
    "claims change between two pages and a row stays visible by another bucket": case(
        "stock stock", 9,
        edit(1, "INSERT", "notes/r1", team="a", kind="q"), edit(1, "INSERT", "notes/r2", team="a"), push(1),
        pull(0, 1), claims(0, team="b", kinds="q"),
    ),
    "a transition walks the keys of its first page": case(
        "stock stock", 1,
        edit(0, "INSERT", "tasks/t2", team="a"), push(0), claims(0, team="b"),
        edit(1, "INSERT", "notes/r1", team="b"), edit(1, "INSERT", "notes/r2", team="b"), push(1), pull(0, 1),
        pull(0, 1),
        edit(1, "UPDATE", "notes/r1", team="a"), push(1),
        edit(1, "INSERT", "notes/r3", team="c"), push(1),
        edit(1, "UPDATE", "notes/r1", x=1), push(1),
        claims(0, team="c"), pull(0, 1),
        limit=1,
    ),
    "rules change twice while rows are brought in line": case(
        "stock stock",
        1,
        edit(1, "INSERT", "notes/r1", team="a"),
        push(1),
        pull(0),
        edit(1, "INSERT", "notes/r2", team="a"),
        push(1),
        ("rules", 0, 2),
        ("reload", 0),
        pull(0),
        ("rules", 0, 3),
        fill="alive",
    ),
    "a row that left its writer's sight is inserted again": case(
        "stock", 1,
        edit(0, "UPDATE", "notes/r3", team="b", kind="p", x=2), push(0), pull(0),
        edit(0, "INSERT", "notes/r3", team="a", x=2),
    ),
    "a push after new claims leaves the next page in doubt": case(
        "letter stock", 6,
        edit(0, "UPDATE", "tasks/t2", team="b", kind="q", y=0), push(0), edit(0, "INSERT", "tasks/r1", x=2), pull(0),
        claims(0, team=["a", "b"], kinds=["p", "q"]),
        limit=1,
    ),
    "a row is deleted and updated in one push": case(
        "stock stock", 1,
        edit(0, "UPDATE", "notes/r3", team="a", x=3), push(0), pull(0),
        edit(0, "DELETE", "notes/r3"), edit(0, "UPDATE", "notes/r3", team="a", x=1),
    ),
    "a delete leaves the row visible to nobody but not empty": case(
        "stock named", 6,
        claims(1, team=["a", "b"], kinds=["p", "q"]),
        edit(0, "INSERT", "misc/m1", team="a", kind="p"), edit(1, "DELETE", "misc/m1", tick=0),
        edit(0, "UPDATE", "misc/m1", team="b", x=1),
    ),
    "edits of a backup are pushed again after their row was hidden": case(
        "named", 8,
        edit(0, "UPDATE", "misc/m1", kind="q"), ("backup", 0), pull(0), push(0), ("restore", 0),
    ),
    "an edit is newer than the delete before an insert": case(
        "letter stock", 2,
        claims(0, team="b"), edit(0, "INSERT", "notes/r2", team="a"), push(0), claims(0, team="a"),
        edit(0, "UPDATE", "notes/r2", x=2), edit(1, "UPDATE", "notes/r2", team="a", y=3), push(1),
    ),
    "a push names a cursor that was never handed out": case(
        "named stock", 1,
        pull(0), edit(1, "INSERT", "notes/r1", team="a"), push(1),
        edit(0, "INSERT", "notes/r2", team="a"), ("odd push", 0),
    ),
    "a claim goes and comes back": case(
        "named stock", 1,
        edit(1, "INSERT", "notes/r3", team="a"), push(1), pull(0), claims(0, team="b"), pull(0),
        edit(1, "INSERT", "notes/r1", team="a"), push(1), edit(1, "DELETE", "notes/r1"), push(1),
        claims(0, team="a"), edit(1, "INSERT", "notes/r2", team="a"), push(1), pull(0), ("wipe", 0),
    ),
    "a client that lost its database pushes between two pages": case(
        "stock", 0,
        edit(0, "INSERT", "misc/m1", x=1), edit(0, "INSERT", "notes/r1", x=1), edit(0, "INSERT", "tasks/t2", x=1),
        push(0), pull(0), edit(0, "INSERT", "notes/r2", x=2), push(0), pull(0),
        ("wipe", 0), pull(0, 1), edit(0, "INSERT", "notes/r3", x=1), push(0),
    ),
    "rules change, an empty pull is lost and a push is repeated": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a", x=1), push(1), pull(0), ("rules", 0, 2), pull(0, 1000, "answer lost"),
        edit(0, "UPDATE", "tasks/t2", team="a", x=2), push(0, "answer lost"), push(0),
        ("rules", 0, 4),
    ),
    "rules change, an empty pull is lost and an edit is pushed twice": case(
        "letter stock", 7,
        edit(0, "INSERT", "misc/m1", team="e"), push(0), ("rules", 0, 8), pull(0, 1000, "request lost"),
        edit(0, "UPDATE", "misc/m1", team="e", y=1), push(0, "answer lost"), push(0, "answer lost"),
    ),
    "edits of a backup are pushed again from a later cursor": case(
        "named", 6,
        pull(0), edit(0, "INSERT", "tasks/r1", kind="q"), ("backup", 0), push(0), ("restore", 0),
    ),
    "a client updates a row that it deleted and another made again": case(
        "named stock", 9,
        claims(1, kinds=["q"]), edit(0, "DELETE", "tasks/r1"), pull(0), push(0),
        edit(1, "UPDATE", "tasks/r1", tick=9, team="a", kind="q", y=3), push(1),
        edit(0, "UPDATE", "tasks/r1", tick=9, team="b", kind="q", x=1), claims(0, team=["a"], kinds=["q"]), push(0),
        claims(0, team=[], kinds="p"),
    ),
    "a backup is from before its client's own delete": case(
        "named stock", 4,
        edit(0, "INSERT", "notes/r1", x=1), edit(0, "INSERT", "tasks/t2", team="g"), pull(0), push(0), ("backup", 0),
        edit(0, "DELETE", "notes/r1"), push(0), ("restore", 0),
    ),
    "a backup has a row that its client deleted since, before it ever pulled": case(
        "stock named", 1,
        edit(0, "INSERT", "notes/r1", team="a"), push(0), ("backup", 0),
        edit(0, "DELETE", "notes/r1"), push(0), ("restore", 0),
    ),
    "a backup lacks a row that its client made and others overwrote": case(
        "named stock", 0,
        pull(0), ("backup", 0), edit(1, "INSERT", "misc/m1", x=1), push(1),
        edit(0, "INSERT", "notes/r1", x=1), edit(1, "INSERT", "notes/r1", x=2), push(0), push(1), ("restore", 0),
    ),
    "a pull after new rules brings nothing and a push follows": case(
        "stock stock named",
        4,
        claims(2, team=["a", "b"]),
        edit(0, "UPDATE", "misc/m1", team="b", x=2),
        push(0),
        pull(2),
        ("rules", 2, 2),
        pull(2),
        edit(2, "INSERT", "notes/r1", y=0),
        edit(1, "DELETE", "misc/m1"),
        push(2),
    ),
    "edits of a backup are pushed again after their row was deleted and made again": case(
        "stock named",
        4,
        claims(1, team=["a"]),
        edit(1, "INSERT", "notes/r3", y=3),
        ("backup", 1),
        edit(0, "DELETE", "notes/r3"),
        pull(1),
        push(1),
        edit(0, "UPDATE", "notes/r3", team="a"),
        ("restore", 1),
    ),
    "a row that left its client's sight is newer than an edit of it": case(
        "stock named",
        9,
        claims(0, team="b"),
        claims(1, team="b", kinds=["p"]),
        edit(0, "UPDATE", "tasks/t2", team="b"),
        push(0),
        edit(1, "INSERT", "tasks/t2", team="b", kind="p"),
        pull(1),
        edit(0, "UPDATE", "tasks/t2", team="a", x=3),
        push(0),
    ),
    "ids of one moment begin alike": case(
        "stock stock", 0,
        edit(0, "INSERT", "notes/r1", x=1), push(0), edit(0, "INSERT", "notes/r2", tick=0, x=1), push(0),
        ids="prefix",
    ),
    "another's column is older than the row's delete and its insert": case(
        "stock named", 4,
        claims(0, team=[]), claims(1, team=["a"]),
        edit(0, "UPDATE", "notes/r2", team="a"), push(0), pull(1), edit(0, "DELETE", "notes/r2"),
        edit(0, "UPDATE", "notes/r2", kind="q"), pull(0), push(0), pull(1), edit(1, "INSERT", "notes/r2", team="a"),
    ),
    "an insert is older than the column that hid the row, which its own client overwrites": case(
        "stock named", 4,
        claims(1, team=["a", "b"]),
        edit(0, "INSERT", "notes/r1", team="b"), edit(0, "INSERT", "notes/r3", team="b"), push(0),
        pull(1, 1), edit(0, "DELETE", "notes/r3", tick=5), edit(0, "UPDATE", "notes/r3", tick=5, y=1),
        pull(1, 1, "answer lost"), edit(1, "INSERT", "notes/r3", tick=-5, x=0),
        edit(1, "UPDATE", "notes/r3", tick=9, team="a", y=0), push(0),
    ),
    "a broadcast that crosses a pull brings a row under a new key": case(
        "stock stock", 8,
        edit(1, "INSERT", "notes/r1", team="b"), push(1), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/r2", team="c"), push(1), pull(0),
    ),
    "a client that connects again is told of what is new before it pulls": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0),
        edit(1, "UPDATE", "notes/r1", x=1), edit(1, "INSERT", "notes/r2", team="a"), push(1),
        ("connect", 0), edit(1, "INSERT", "notes/r3", team="a"), edit(1, "DELETE", "notes/r1"), push(1),
    ),
    "a client that lost its database connects and is told of what is new": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0), pull(0), ("wipe", 0), ("connect", 0),
        edit(1, "INSERT", "notes/r2", team="a"), push(1), ("hear", 0), ("hear", 0),
    ),
    "pulls with another token come between the pages": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"),
        edit(1, "INSERT", "notes/r3", team="b"), push(1), pull(0),
        limit=1, token=B,
    ),
    "new rules hide a row that its client wrote under claims of others": case(
        "stock stock", 9,
        edit(1, "UPDATE", "notes/r2", team="a"), edit(0, "INSERT", "tasks/r1", x=2), pull(0), pull(1),
        claims(0, team=[], kinds=["p", "q"]), edit(1, "UPDATE", "tasks/r1", tick=0, team="a", x=2), push(0), push(1),
        ("rules", 1, 6),
        limit=1, fill="alive",
    ),
    "edits of a backup are pushed again beside a new one, after their row was deleted": case(
        "named stock", 1,
        edit(0, "INSERT", "tasks/t2", y=3), edit(0, "UPDATE", "tasks/t2", team="a", y=2),
        ("backup", 0), pull(0), push(0),
        edit(1, "DELETE", "tasks/t2"), edit(1, "UPDATE", "tasks/t2", tick=0, team="a", kind="q"), pull(1), push(1),
        ("restore", 0), edit(0, "UPDATE", "tasks/t2", tick=5, team="a"),
    ),
    "rules show everything while a client is away, then hide a row until it is in line": case(
        "named stock", 1,
        claims(0, level="1"), edit(1, "INSERT", "notes/r1", team="a", x=2),
        edit(1, "INSERT", "tasks/t2", team="a", x=2), edit(1, "INSERT", "misc/m1", team="a", x=2), push(1), pull(0),
        ("rules", 0, 0), ("rest", 0), ("rules", 0, 5), pull(0),
        fill="deleted",
    ),
    "a row comes and goes twice under claims that its client had for one page": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r3", team="a"), push(1), edit(1, "INSERT", "notes/r1", team="b"), push(1), pull(0),
        edit(1, "UPDATE", "notes/r1", team="e"), push(1), claims(0, team="b"), pull(0, 1), claims(0, team="a"),
        edit(1, "UPDATE", "notes/r1", team="b"), push(1), edit(1, "UPDATE", "notes/r1", team="g"), push(1),
    ),
    "a row is under a key before and after its client had claims for it": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="b"), push(1), edit(1, "UPDATE", "notes/r1", team="e"), push(1),
        edit(1, "INSERT", "notes/r2", team="b"), push(1), edit(1, "INSERT", "notes/r3", team="b"), push(1),
        claims(0, team="b"), pull(0, 1), claims(0, team="a"),
        edit(1, "UPDATE", "notes/r1", team="b"), push(1), edit(1, "UPDATE", "notes/r1", team="g"), push(1),
    ),
    "lines of several claims are left behind": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"),
        edit(1, "INSERT", "notes/r3", team="b"), push(1),
        pull(0), ("connect", 0), ("connect", 0), claims(0, team="b"),
        pull(0), ("connect", 0), ("connect", 0), claims(0, team="a"),
        limit=1,
    ),
    "claims change after a connection and a row comes and goes": case(
        "stock stock", 1,
        ("connect", 0), pull(0), claims(0, team="b"), pull(0), claims(0, team="c"),
        edit(1, "INSERT", "notes/r1", team="b"), push(1), edit(1, "DELETE", "notes/r1"), push(1),
    ),
    "rows are sent under one older key of a client's earlier claims, and others are under another": case(
        "stock stock stock", 3,
        ("rules", 1, 4), edit(2, "INSERT", "notes/r3", tick=0, team="b", x=3),
        edit(2, "UPDATE", "notes/r2", team="e", kind="q", x=1), push(2),
        edit(0, "DELETE", "tasks/r1", tick=0), push(0), claims(0, team="b", kinds=["q"], level="0"), pull(0, 1),
        edit(0, "UPDATE", "notes/r3", tick=0, team="e", x=1), edit(1, "UPDATE", "notes/r1", tick=0, kind="p", team="a"),
        edit(1, "UPDATE", "notes/r3", tick=0, team="g"), edit(1, "UPDATE", "notes/r2", team="b"), push(1),
        pull(0), ("rules", 0, 5),
        limit=1, fill="alive", clients=[
            ("stock", {"team": ["a", "b"], "kinds": ["p"], "level": "1"}, -3),
            ("stock", {"team": "b", "kinds": "p", "level": "1"}, 3),
            ("stock", {"team": ["b"], "kinds": ["p", "q"], "level": "2"}, 0),
        ],
    ),
    "an UPDATE is older than the DELETE that its client was sent before it inserted the row": case(
        "named stock", 1,
        edit(0, "UPDATE", "tasks/r1", team="e"), pull(0), push(0), pull(0, 1),
        edit(1, "UPDATE", "tasks/r1", tick=0, team="b", y=3),
        edit(0, "INSERT", "tasks/r1", tick=0, team="a", kind="q", x=3), push(0),
        clients=[("named", A, 3), ("stock", {**B, "team": ["a", "b"]}, -30)],
    ),
    "an old pull comes again after its client was put back from a backup": case(
        "letter letter", 7,
        edit(0, "INSERT", "tasks/t2", team="b", y=1), push(0), ("backup", 1), pull(1, 2), pull(1, 2), ("restore", 1),
        pull(1, 1000, "answer lost"), ("old pull", 1, 2), edit(1, "INSERT", "notes/r2", kind="q"), push(1),
        limit=5,
    ),
    "an old pull comes after its client began again, and brings nothing": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r3", team="f"), push(1), pull(0), push(0), pull(0),
        edit(0, "INSERT", "notes/r1", team="a"), push(0), pull(0), ("wipe", 0),
        pull(0, 1), ("old pull", 0, 3), edit(0, "UPDATE", "notes/r3", team="b"), push(0),
    ),
    "an old pull comes after its client began again, and brings another row": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r3", team="f"), push(1), pull(0), push(0), pull(0),
        edit(0, "INSERT", "notes/r1", team="a"), push(0), pull(0), ("wipe", 0),
        pull(0, 1), edit(1, "INSERT", "notes/r2", team="a"), push(1), ("old pull", 0, 3),
        edit(0, "UPDATE", "notes/r3", team="b"), push(0),
    ),
    "an old pull comes after its client began again, and other shards have nothing for its first page": case(
        "letter stock", 0,
        edit(1, "INSERT", "misc/m1", team="a"), edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0), pull(0),
        ("wipe", 0), pull(0, 1), ("old pull", 0, 2), edit(0, "UPDATE", "misc/m1", team="c"), push(0),
        limit=1,
    ),
    "an old pull comes after its client began again and lost the last page": case(
        "stock stock", 0,
        *THREE, push(1), pull(0), pull(0), ("wipe", 0), pull(0, 1), pull(0, 1000, "answer lost"), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "an old pull comes after its client was put back from a backup and lost the last page": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r2", team="f"), push(1), pull(0), ("backup", 0), *THREE, push(1), pull(0), pull(0),
        ("restore", 0), pull(0, 1), pull(0, 1000, "answer lost"), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "two old pulls come after their client began again": case(
        "letter letter", 0,
        *THREE[:2], push(1), pull(0), THREE[2], push(1), pull(0), pull(0), ("wipe", 0), pull(0, 1), ("old pull", 0, 3),
        ("old pull", 0, 2), edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "an old pull comes after its client began again twice": case(
        "stock stock", 1,
        *SIX[:3], push(1), claims(0, team="b"), edit(0, "INSERT", "notes/r1", team="b"), push(0), pull(0), claims(0),
        pull(0), pull(0), ("wipe", 0), pull(0, 1), ("wipe", 0), pull(0, 1), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r2", team="a"), push(0),
    ),
    "an old pull of an earlier page than the latest comes after its client began again": case(
        "stock stock", 0,
        *THREE, push(1), pull(0, 1), pull(0), edit(0, "INSERT", "tasks/r1", x=1), push(0), ("wipe", 0),
        pull(0, 1), pull(0, 1), pull(0, 1), ("old pull", 0, 4), edit(0, "INSERT", "tasks/t2", x=1), push(0),
    ),
    "an old pull of the middle of its pages comes after its client began again": case(
        "stock letter", 0,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"),
        edit(1, "INSERT", "notes/r3", team="a"), push(1), pull(0, 1), pull(0, 1), pull(0, 1), ("wipe", 0),
        pull(0, 1), ("old pull", 0, 2), edit(0, "INSERT", "tasks/r1", team="b"), push(0),
    ),
    "an unknown cursor brings nothing of a shard, and another one comes after other claims brought a row": case(
        "stock letter", 8,
        edit(1, "INSERT", "misc/n70", team="b"), edit(1, "INSERT", "tasks/r1", team="c"), push(1),
        ("odd pull", 0, "ahead", 2), claims(0, team=["a"]), pull(0, 2), claims(0, team=["b"]),
        ("odd pull", 0, "below", 1),
        clients=[("stock", {**A, "team": ["a", "b"]}, 0), ("letter", B, 0)],
    ),
    "a row is under claims that its client had before it ever pulled, and other tokens pull between its pages": case(
        "stock stock", 1,
        claims(0, team="b"), *SIX, push(1), edit(0, "INSERT", "tasks/r1", team="b"), push(0), claims(0, team="a"),
        pull(0, 1),
        limit=1, token=C,
    ),
    "a client writes under claims that it has for one push, and other tokens pull between its pages": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/t2", team="a"), push(1), pull(0), *SIX, push(1),
        claims(0, team="b"), edit(0, "INSERT", "tasks/r1", team="b"), push(0), claims(0),
        limit=1, token=C,
    ),
    "a broadcast without a cursor under other claims is followed by pulls with more tokens than are kept": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/t2", team="b"), push(1), *SIX, push(1), pull(0, 1), pull(0, 1),
        claims(0, team="b"), ("connect", 0), edit(1, "INSERT", "tasks/t3", team="b"), push(1), ("hear", 0),
        *[("other token", 0, {**A, "team": team}, 1) for team in "cdcdcdcdcd"], claims(0),
        limit=1,
    ),
    "a push under other claims follows rows under a key that came into use since": case(
        "named stock", 8,
        pull(0), edit(1, "UPDATE", "notes/r1", team="b"), push(1),
        claims(0, team=["a", "b"]), edit(0, "UPDATE", "tasks/r1", team="b"), push(0), claims(0),
    ),
    "a small page with another token comes beside a line, before rows that only the line shows": case(
        "stock stock", 1,
        edit(1, "INSERT", "misc/m1", team="a"), push(1), pull(0), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/n1", team="c"), edit(1, "INSERT", "notes/n2", team="c"), push(1),
        ("other token", 0, C, 1), edit(1, "INSERT", "misc/m2", team="z"), push(1),
        edit(1, "INSERT", "tasks/t1", team="a"), push(1), ("hear", 0), ("hear", 0), claims(0, team="c"),
    ),
    "a row comes and goes between two pulls with another token": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/n1", team="c"), push(1), ("other token", 0, C, 1000), *GLIMPSE,
        ("other token", 0, C, 1000),
    ),
    "a row comes and goes between two pulls with earlier claims, after a repeated push with others": case(
        "stock stock", 1,
        edit(0, "INSERT", "tasks/t2", team="a"), push(0, "answer lost"), claims(0, team="c"),
        pull(0, 1000, "answer lost"), claims(0), push(0, "answer lost"), *GLIMPSE,
        claims(0, team="c"), pull(0, 1000, "answer lost"), claims(0),
    ),
    "a row of a client that never pulled gets more writers than are kept": case(
        "stock stock", 1,
        edit(0, "INSERT", "tasks/r1", team="a"), push(0), *NINE,
    ),
    "a client that pushed before it ever pulled connects with other claims": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r2", team="c"), push(0), claims(0, team="b"), ("connect", 0),
        edit(1, "INSERT", "tasks/r1", team="a"), push(1), *NINE,
    ),
    "a row under earlier claims of its client gets more writers than are kept": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r2", team="a"), push(1), pull(0),
        claims(0, team="b"), edit(0, "INSERT", "tasks/r1", team="b"), push(0), *NINE, claims(0),
    ),
    "a row gets more writers than are kept and leaves its client's sight": case(
        "named stock", 1,
        edit(1, "INSERT", "notes/r2", team="a"), push(1), pull(0), edit(1, "INSERT", "notes/r3", team="a"), push(1),
        edit(0, "INSERT", "tasks/r1", team="a"), push(0), *NINE, edit(1, "UPDATE", "tasks/r1", team="z"), push(1),
    ),
    "a row that its client deleted, but no other, gets more writers than are kept": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/r1", team="a"), edit(1, "DELETE", "tasks/r1"), edit(1, "INSERT", "tasks/r1", team="a"),
        push(1), pull(0), pull(0), edit(0, "DELETE", "tasks/r1"), push(0), *NINE,
        clients=[("stock", A, -30), ("stock", B, 0)],
    ),
    "a page with another token comes between the pages of a client that lost one when the rules changed": case(
        "stock stock", 2,
        ("rules", 0, 0),
        edit(1, "UPDATE", "notes/r1", team="a", kind="q", x=1, tick=5),
        edit(0, "UPDATE", "tasks/r1", team="a", tick=5), push(0), push(1),
        edit(0, "INSERT", "notes/r1", team="b", tick=5), pull(0, 2), ("rules", 0, 4), ("rules", 0, 9),
        pull(0, 2, "answer lost"), push(0), pull(0, 2),
        clients=[("stock", {**B, "team": ["b"], "kinds": ["p", "q"]}, 0), ("stock", B, -30)],
        limit=5, token={**A, "team": ["a"]},
    ),
    "a client that lost its database pushes before a page has reached its row": case(
        "stock", 4,
        edit(0, "INSERT", "tasks/r1", x=1), edit(0, "UPDATE", "misc/m1", x=3), push(0),
        ("wipe", 0), pull(0, 1, "answer lost"), edit(0, "DELETE", "notes/r3"), push(0),
        clients=[("letter", B, 0)],
    ),
    "a client takes a page, and then the answer to a push with the cursor before that page": case(
        "named stock", 1,
        edit(0, "INSERT", "notes/r3", team="a"), edit(0, "INSERT", "notes/r2", team="a"),
        edit(0, "INSERT", "misc/m1", team="c"), pull(0), push(0),
        pull(1), pull(1), edit(1, "INSERT", "notes/r1", team="c"), claims(1), push(1),
        edit(1, "UPDATE", "misc/m1", team="a"),
        pull(0), ("and", 0, 0.1), pull(1, 3), ("and", 0, 0.0), push(1), pull(1, 1), pull(1, 1),
        clients=[("named", B, 0), ("stock", C, -3)],
    ),
    "a push arrives only after its client lost its database and pulled again": case(
        "stock stock", 4,
        edit(0, "UPDATE", "notes/r2", x=1, y=1), push(0, "request lost"),
        edit(1, "INSERT", "notes/r2", team="a", y=1), push(1), ("wipe", 0), pull(0), ("old push", 0, 1),
    ),
    "an INSERT arrives only after its client lost its database and pulled again": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1),
        edit(0, "INSERT", "notes/r2", team="a", y=1), push(0, "request lost"), ("wipe", 0), pull(0), ("old push", 0, 1),
    ),
    "a row of nine writers comes into a bucket that a client saw before with another token": case(
        "stock stock", 1,
        *TOKENS_IN_TURNS, edit(0, "INSERT", "notes/r2", team="c"), push(0),
        *NINE, edit(1, "UPDATE", "tasks/r1", team="c"), push(1),
    ),
    "a row comes into a bucket that a client saw when it sent a cursor that was never issued": case(
        "stock stock", 1,
        claims(0, team=["a", "c"]), ("odd pull", 0, "ahead", 1000), claims(0), pull(0),
        edit(1, "INSERT", "notes/r1", team="c"), push(1), pull(0),
    ),
    "a restored client repeats a change that a DELETE covers, and a newer one": case(
        "stock named", 1,
        edit(0, "DELETE", "notes/r1"), edit(1, "UPDATE", "notes/r1", -25, team="b", x=2), push(0),
        edit(1, "UPDATE", "notes/r1", 50, team="b"), pull(1), ("backup", 1), push(1), ("restore", 1),
    ),
    "a client whose clock went back updates a row that it wrote before": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r1", team="a", x=1), push(0), pull(0), ("clock", 0, -50),
        edit(0, "UPDATE", "notes/r1", x=2), push(0),
    ),
    "a row that a line brought leaves its client's sight while the line is lost": case(
        "stock stock", 4,
        edit(1, "INSERT", "notes/r2", x=1), push(1), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/r1", x=1), push(1), ("hear", 0, 5.0), ("cut", 0),
        edit(1, "UPDATE", "notes/r1", x=0), push(1), ("connect", 0),
    ),
    "a client that only pushed connects, and is told what others write": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1),
        edit(0, "INSERT", "notes/r2", team="a"), push(0), ("connect", 0), ("hear", 0, 5.0),
        edit(1, "INSERT", "notes/r3", team="a"), push(1),
    ),
    "a client connects, pushes for the first time, and is told what others write": case(
        "stock stock", 1,
        ("connect", 0), edit(0, "INSERT", "notes/r2", team="a"), push(0), edit(1, "INSERT", "notes/r1", team="a"),
        push(1),
    ),
    "a row that the line of a client that only pushed brought leaves its sight while the line is lost": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r2", team="a"), push(0), ("connect", 0),
        edit(1, "INSERT", "notes/r1", team="a"), push(1), ("hear", 0, 5.0), ("cut", 0),
        edit(1, "UPDATE", "notes/r1", team="b"), edit(1, "INSERT", "notes/r3", team="a"), push(1), ("connect", 0),
    ),
    "a client that only pushed drops a broadcast that names its edit, and pushes that": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r1", team="a"), push(0), ("connect", 0), edit(0, "UPDATE", "notes/r1", x=1),
        edit(1, "UPDATE", "notes/r1", team="b", y=1), push(1), ("hear", 0, 5.0), push(0), ("cut", 0), ("connect", 0),
    ),
}  # fmt: skip

CASES_OF_PROCESSES = {
    "a process broadcasts before it is notified of a pull with another token at another one": case(
        "stock stock", 1,
        ("connect", 0), pull(0), edit(1, "INSERT", "notes/r1", team="a"), push(1), ("hear", 0, 5.0),
        ("process", 1, 1), edit(1, "INSERT", "notes/r2", team="c"), push(1),
        ("hold", 0), ("process", 0, 1), ("other token", 0, C, 1000),
        ("process", 1, 0), edit(1, "INSERT", "notes/r3", team="a"), push(1), ("hear", 0, 5.0), ("release", 0),
        claims(0, team="c"),
    ),
    "a process misses that another one sends a client rows over HTTP": case(
        "stock stock", 1,
        ("connect", 0), pull(0), edit(1, "INSERT", "notes/r1", team="a"), ("deaf", 0, 1, 1000), ("hear", 0, 5.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_client_ends_with_its_rows(over_sqlite, name):
    _check(over_sqlite, CASES[name])


@pytest.mark.parametrize("name", [name for name, each in CASES.items() if not each.setting["fill"]])
def test_every_client_of_a_sharded_gateway_ends_with_its_rows(over_shards, name):
    _check(over_shards, CASES[name])


@pytest.mark.parametrize("name", CASES_OF_PROCESSES)
def test_every_client_of_two_processes_ends_with_its_rows(two_processes, name):
    _check(two_processes, CASES_OF_PROCESSES[name])


def test_a_process_that_cannot_listen_yet_misses_that_another_one_sends_a_client_rows_over_http(own_database):
    server = Server("postgres", own_database, 2)
    try:
        _check(
            server,
            case(
                "stock stock", 1,
                ("deafen", 0), ("connect", 0), pull(0), edit(1, "INSERT", "notes/r1", team="a"), ("deaf", 0, 1, 1000),
                ("hear", 0, 5.0),
            ),
        )  # fmt: skip
    finally:
        server.close()


def _check(server, case):
    found = wrong(server, case)
    assert found is None, "\n".join([found[0], *found[1]])
