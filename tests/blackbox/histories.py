"""Random histories: their setting, and steps that run one after another or concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.blackbox.scenarios import changed_twice, never_pulled, reconnected, steps_of
from tests.blackbox.steps import DELAYS, KEYS, Step, World, edit, some_claims

TEAMS: list[Any] = ["a", "b", ["a"], ["b"], ["a", "b"], [], ["b", "c", "a"]]
FEW_TEAMS: list[Any] = ["a", "b", "c"]


def _bucket(name: str, *filters: tuple[str, str, str], tables: tuple[str, ...] = ()) -> dict[str, Any]:
    spelled = [dict(zip(("column", "op", "value"), each, strict=True)) for each in filters]
    return {"name": name, "tables": list(tables), "filters": spelled}


_TEAM = ("team", "eq", "jwt:team")
RULES: list[list[dict[str, Any]]] = [
    [],
    [_bucket("mine", _TEAM)],
    [_bucket("own", _TEAM)],
    [_bucket("mine", _TEAM, ("x", "eq", "1"))],
    [_bucket("mine", _TEAM), _bucket("ones", ("x", "eq", "1"))],
    [_bucket("mine", _TEAM, ("x", "gt", "jwt:level"))],
    [_bucket("both", ("team", "in", "jwt:team"), ("kind", "in", "jwt:kinds"))],
    [_bucket("notes", _TEAM, tables=("notes",)), _bucket("rest", tables=("tasks", "misc"))],
    [_bucket("others", ("team", "neq", "jwt:team"))],
    [_bucket("teams", _TEAM), _bucket("kinds", ("kind", "in", "jwt:kinds"))],
]
ANY = list(range(len(RULES)))
FEW_RULES = [1, 2, 4]
FILLERS = {"alive": 4_500, "deleted": 9_000}
"""The number of rows in a filled gateway, enough that each shard applies a change of rules in the background."""
FILLED = {"alive": [1, 2, 3, 4, 5, 6, 9], "deleted": [*ANY, 0, 0, 0, 5, 5, 5]}
"""The rules of a filled gateway: those that show no client the fillers, or all.

Often those without buckets, and those of which no row may have a key yet.
"""
LATE = [5, 8]
"""Rules for which no row has a key before its reindex: those with an ordering, and with an inequality."""
_EVEN = {
    "edit": 10, "pull": 10, "push": 6, "claims": 3, "rules": 1, "wipe": 0.4, "reload": 0.6, "backup": 0.6,
    "restore": 0.6, "old pull": 0.5, "old push": 0.5, "odd pull": 0.3, "odd push": 0.3, "flush": 0.4,
    "other token": 0.5, "device": 0.3, "start again": 0.2, "late pull": 0.1, "return": 0.3, "overwritten": 0.2,
    "at once": 0.4, "crowd": 0.1, "late token": 0.3, "erase": 0.2,
}  # fmt: skip
PROFILES: list[dict[str, float]] = [
    _EVEN,
    {"edit": 10, "pull": 12, "push": 6, "claims": 6},
    {"edit": 10, "pull": 10, "push": 6, "other token": 6},
    {"edit": 6, "pull": 6, "push": 4, "at once": 6, "claims": 1, "other token": 1},
    {"edit": 4, "pull": 4, "push": 4, "late tokens": 4, "claims": 0.5},
    {"edit": 8, "pull": 12, "push": 6, "rules": 4, "claims": 2},
    {"edit": 4, "pull": 4, "push": 4, "in doubt": 4, "claims": 0.5},
    {"edit": 10, "pull": 10, "push": 8, "wipe": 1, "reload": 2, "backup": 2, "restore": 2, "old pull": 1},
    {"edit": 10, "pull": 8, "push": 8, "claims": 1, "rules": 0.5},
    {"edit": 10, "pull": 8, "push": 8, "backup": 3, "restore": 3},
    {**_EVEN, "rules": 3, "wipe": 1.5, "old push": 1.5},
    {"edit": 4, "pull": 4, "push": 4, "between pages": 6, "rules": 0.5},
    {
        "edit": 4,
        "pull": 4,
        "push": 4,
        "between pages": 4,
        "rules": 0.5,
        "reload": 1,
        "wipe": 0.5,
        "restore": 0.5,
        "backup": 0.5,
    },
    {"edit": 6, "pull": 6, "push": 4, "start again": 3, "claims": 0.5},
    {"edit": 6, "pull": 4, "push": 4, "late pull": 3, "claims": 0.3},
    {"edit": 4, "pull": 3, "push": 3, "unissued cursor": 4},
    {"edit": 6, "pull": 6, "push": 6, "clock": 2, "claims": 0.3, "wipe": 0.2},
    {"edit": 6, "pull": 6, "push": 4, "return": 4, "claims": 1, "rules": 0.3},
    {"edit": 6, "pull": 6, "push": 4, "overwritten": 4, "claims": 0.5},
    {"edit": 4, "pull": 4, "push": 4, "claims": 1, "crowd": 1},
    {
        "edit": 10,
        "pull": 8,
        "push": 8,
        "erase": 2,
        "claims": 1,
        "rules": 0.3,
        "flush": 0.5,
        "restore": 0.5,
        "backup": 0.5,
    },
    {"edit": 2, "pull": 2, "push": 2, "three scopes": 4},
    {"edit": 2, "pull": 2, "push": 2, "tokens in turns": 3},
    {**_EVEN, "tokens in turns": 3},
]
LIVE = {"connect": 5.0, "cut": 1.0, "hear": 4.0, "cross": 4.0}
NOTICES = {"late": 1.5, "deaf": 1.5}
"""Additional steps of histories with several processes, with their weights."""
NOTICES_EVERY = 4
"""One group of twenty seeds in so many has lost notices, after which a process is uncertain about all connections."""
REQUESTS = {"pull", "push", "other token", "old pull", "old push", "rules", "flush", "connect"}
"""Steps that may run concurrently with others."""
BEFORE = {"edit", "process"}
"""Steps that may be between concurrent ones, and run before them."""
MOST = 4
"""The largest number of requests in a group."""


def history(
    seed: int,
    *,
    kills: bool = False,
    fill: bool = False,
    live: bool = False,
    processes: int = 1,
    overlap: bool = False,
) -> tuple[dict[str, Any], list[Step]]:
    """A history's setting and its steps.

    Args:
        seed: of the random numbers.
        kills: whether the server is killed at random.
        fill: whether the gateway first gets many visible or deleted rows.
        live: whether stock clients have WebSockets.
        processes: the number of gateway processes.
        overlap: whether requests run concurrently.
    """
    random = Random(seed)
    fillers = random.choice(list(FILLERS)) if fill else ""
    few = random.random() < 0.4  # teams and rules by which rows become visible again to a client that saw them before
    rules = FILLED.get(fillers, FEW_RULES if few else ANY)
    world = World(
        keys=random.sample(KEYS, random.randint(1 if fill else 2, len(KEYS))),
        limits=random.choice([[1], [1, 2], [1, 2, 3, 5], [2, 1000], [1000]]),
        rules=rules,
        teams=FEW_TEAMS if few else TEAMS,
        devices=["stock", "letter"] if live else ["stock", "stock", "letter", "named"],
        letters="abc" if few else "aaaaabbbbbcdefg",
    )
    people = random.randint(2, 3)
    setting = {
        "clients": [
            (random.choice(world.devices), some_claims(random, world), random.choice([-30, -3, 0, 0, 3]))
            for _ in range(people)
        ],
        "rules": random.choice(rules),
        "ids": random.choices(["hash", "text", "prefix"], [30, 5, 1])[0],
        "fill": fillers,
        "last limit": random.choice([1, 2, 5, 1000]),
    }
    weights = dict(random.choice(PROFILES))
    chance = 0.4 if "tokens in turns" in weights or "in doubt" in weights else 0.1
    if random.random() < chance:  # used alternately with each client's own claims until the end
        setting["token"] = some_claims(random, world)
    if kills:
        weights["kill"] = 1.0
    if live:
        weights |= LIVE
        setting["waits"] = random.random() < 0.1
        setting["late"] = random.choice([0.0, 0.01, 0.03])
    if overlap:
        weights["crossing"] = random.choice([0.5, 2.0, 6.0])
    if live and processes > 1 and seed // 20 % NOTICES_EVERY == 0:
        weights |= NOTICES
    if fill and random.random() < 0.5:  # the last change of rules, after which no row has the earlier keys
        weights = {"edit": 10.0, "pull": 8.0, "push": 8.0}
    elif fill:
        weights |= {"rules": 4.0, "rules, then others": 2.0, "reload": 2.0, "pull": 12.0}
    kinds, chances = list(weights), list(weights.values())
    size = random.randint(6, 70 if "rules" in weights or not fill else 20)
    steps: list[Step] = []
    if random.random() < 0.4:  # begin with rows
        steps = [edit(random, 0, world, key) for key in world.keys for _ in range(random.choice([1, 1, 2]))]
        steps += [("pull", 0, 1000, "whole"), ("push", 0, "whole")]
    while len(steps) < size:
        kind = random.choices(kinds, chances)[0]
        steps += steps_of(random, kind, random.randrange(people), world)
    late = [each for each in LATE if each in rules]
    if fill:  # at the end, where no later rules send everything again
        steps += changed_twice(random, 0, world, last=random.choice([late, rules]))
    if live and random.random() < 0.4:  # at the end, so that no later pull sends rows that the WebSocket missed
        steps += random.choice([reconnected, never_pulled])(random, random.randrange(people), world)
    if processes > 1:
        steps = _spread(random, steps, processes)
    return setting, _overlapping(random, steps) if overlap else steps


def _spread(random: Random, steps: list[Step], processes: int) -> list[Step]:
    """Insert steps at random after which clients send their requests to another process."""
    chance = random.choice([0.1, 0.3, 0.5])
    found: list[Step] = [("process", who, random.randrange(processes)) for who in range(3)]
    for step in steps:
        if step[0] not in ("edit", "process", "and") and random.random() < chance:
            together = found[-1:] if found[-1][0] == "and" else []
            found += [("process", step[1], random.randrange(processes)), *together]
        found.append(step)
    return found


def _overlapping(random: Random, steps: list[Step]) -> list[Step]:
    """Make some steps run concurrently with the steps before them."""
    chance = random.choice([0.1, 0.3, 0.6])
    found: list[Step] = []
    between: list[Step] = []
    after_request = False
    for step in steps:
        if step[0] in BEFORE or step[0] == "and":
            between.append(step)
            continue
        together = step[0] in REQUESTS and after_request and random.random() < chance
        after_request = step[0] in REQUESTS
        for each in [*between, step]:
            found += [("and", 0, random.choice(DELAYS))] if together else []
            found.append(each)
        between = []
    return found + between


def groups_of(steps: list[Step]) -> Iterator[list[tuple[float, Step]]]:
    """Return the groups of steps that run together; each step has its delay in seconds after the first one."""
    group: list[tuple[float, Step]] = []
    delay: float | None = None
    for step in steps:
        if step[0] == "and":
            delay = step[2]
            continue
        may = step[0] in REQUESTS | BEFORE
        is_full = sum(each[0] in REQUESTS for _, each in group) == MOST
        if group and (not may or delay is None or is_full):
            yield group
            group = []
        group.append((delay or 0.0 if group else 0.0, step))
        delay = None
        if not may:
            yield group
            group = []
    if group:
        yield group
