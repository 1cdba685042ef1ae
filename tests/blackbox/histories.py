"""Histories at random: what clients, operators and the network do, one request after another."""

from __future__ import annotations

from random import Random
from typing import Any

Step = tuple[Any, ...]

KEYS = [("notes", "r1"), ("notes", "r2"), ("notes", "r3"), ("tasks", "r1"), ("tasks", "t2"), ("misc", "m1")]
TEAMS: list[Any] = ["a", "b", ["a"], ["b"], ["a", "b"], [], ["b", "c", "a"]]
KINDS: list[Any] = [["p"], ["q"], ["p", "q"], "p"]
LEVELS = ["0", "1", "2"]


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
TABLES = sorted({table for table, _ in KEYS})
FILLERS = {"alive": 4_500, "deleted": 9_000}
"""How many rows a gateway is filled with, so that a change of rules is applied in the background, in each shard too."""
FILLED = {"alive": [1, 2, 3, 4, 5, 6, 9], "deleted": [*ANY, 0, 0, 0, 5, 5, 5]}
"""The rules of a filled gateway: those that show no client the fillers, or all.

Often those without buckets, and those of which no row may have a key yet.
"""
LATE = [5, 8]
"""Rules by which no row has a key before it is brought in line with them: those by an order, and by what differs."""

FATES = ["whole"] * 5 + ["answer lost", "request lost"]
_EVEN = {
    "edit": 10, "pull": 10, "push": 6, "claims": 3, "rules": 1, "wipe": 0.4, "reload": 0.6, "backup": 0.6,
    "restore": 0.6, "old pull": 0.5, "old push": 0.5, "odd pull": 0.3, "odd push": 0.3, "flush": 0.4,
    "other token": 0.5,
}  # fmt: skip
PROFILES: list[dict[str, float]] = [
    _EVEN,
    {"edit": 10, "pull": 12, "push": 6, "claims": 6},
    {"edit": 10, "pull": 10, "push": 6, "other token": 6},
    {"edit": 8, "pull": 12, "push": 6, "rules": 4, "claims": 2},
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
]


LIVE = {"connect": 5.0, "cut": 1.0, "hear": 4.0, "cross": 4.0}


def history(
    seed: int, *, kills: bool = False, fill: bool = False, live: bool = False
) -> tuple[dict[str, Any], list[Step]]:
    """A history's setting and its steps.

    Args:
        seed: of the random numbers.
        kills: whether the server is killed now and then.
        fill: whether the gateway is filled, with rows that are alive or deleted.
        live: whether stock clients have WebSockets.
    """
    random = Random(seed)
    fillers = random.choice(list(FILLERS)) if fill else ""
    rules = FILLED.get(fillers, ANY)
    people = random.randint(2, 3)
    setting = {
        "clients": [
            (random.choice(["stock", "stock", "letter", "named"]), _claims(random), random.choice([-30, -3, 0, 0, 3]))
            for _ in range(people)
        ],
        "rules": random.choice(rules),
        "ids": random.choices(["hash", "text", "prefix"], [30, 5, 1])[0],
        "fill": fillers,
        "last limit": random.choice([1, 2, 5, 1000]),
    }
    if random.random() < 0.1:  # used in turns with each client's own to the end
        setting["token"] = _claims(random)
    weights = dict(random.choice(PROFILES))
    if kills:
        weights["kill"] = 1.0
    if live:
        weights |= LIVE
        setting["waits"] = random.random() < 0.1
        setting["late"] = random.choice([0.0, 0.01, 0.03])
        setting["clients"] = [(kind.replace("named", "stock"), *rest) for kind, *rest in setting["clients"]]
    if fill and random.random() < 0.5:  # rules that change at the end only find no row under their keys
        weights = {"edit": 10.0, "pull": 8.0, "push": 8.0}
    elif fill:
        weights |= {"rules": 4.0, "rules, then others": 2.0, "reload": 2.0, "pull": 12.0}
    kinds, chances = list(weights), list(weights.values())
    keys = random.sample(KEYS, random.randint(2, len(KEYS)))
    limits = random.choice([[1], [1, 2], [1, 2, 3, 5], [2, 1000], [1000]])
    size = random.randint(6, 70 if "rules" in weights or not fill else 20)
    steps: list[Step] = []
    if random.random() < 0.4:  # begin with rows
        steps = [_edit(random, 0, [key]) for key in keys for _ in range(random.choice([1, 1, 2]))]
        steps += [("pull", 0, 1000, "whole"), ("push", 0, "whole")]
    while len(steps) < size:
        kind = random.choices(kinds, chances)[0]
        steps += _made(random, kind, random.randrange(people), keys, limits, rules)
    late = [each for each in LATE if each in rules]
    if fill:  # at the end, where no later rules send everything again
        steps += _changed_twice(random, 0, limits, rules, last=random.choice([late, rules]))
    return setting, steps


def _made(
    random: Random, kind: str, who: int, keys: list[tuple[str, str]], limits: list[int], rules: list[int]
) -> list[Step]:
    match kind:
        case "edit":
            return [_edit(random, who, keys) for _ in range(random.choice([1, 1, 1, 2, 4]))]
        case "pull":
            return [(kind, who, random.choice(limits), random.choice(FATES))]
        case "push":
            return [(kind, who, random.choice(FATES))]
        case "claims":
            return [(kind, who, _claims(random))]
        case "other token":
            return [(kind, who, _claims(random), random.choice(limits))]
        case "rules":
            return [(kind, who, random.choice(rules))]
        case "rules, then others":
            return _changed_twice(random, who, limits, rules)
        case "old pull" | "old push":
            return [(kind, who, random.randint(1, 4))]
        case "odd pull":
            return [(kind, who, random.choice(["near", "ahead", "below"]), random.choice(limits))]
        case "cross":
            return [("edit", who + 1, *_edit(random, who, keys)[2:]), (kind, who, random.choice(limits))]
        case "between pages":
            return _between_pages(random, who, keys, limits, rules)
    return [(kind, who)]


def _between_pages(
    random: Random, who: int, keys: list[tuple[str, str]], limits: list[int], rules: list[int]
) -> list[Step]:
    """Pages of one walk, and something between each two of them."""
    steps: list[Step] = []
    for _ in range(random.randint(1, 4)):
        steps.append(("pull", who, min(limits), random.choice(FATES)))
        kind = random.choice(
            ["claims", "claims", "other token", "rules", "edit", "push", "others", "others", "nothing"]
        )
        if kind == "others":
            steps += [_edit(random, who + 1, keys), ("push", who + 1, "whole")]
        elif kind != "nothing":
            steps += _made(random, kind, who, keys, limits, rules)
    return [*steps, ("pull", who, random.choice(limits), random.choice(FATES))]


def _changed_twice(
    random: Random, who: int, limits: list[int], rules: list[int], last: list[int] | None = None
) -> list[Step]:
    """Rules that nobody pulls under, or a few do, and others, under which all pull while they are applied.

    Args:
        random: what it is drawn with.
        who: the first who pulls.
        limits: of pages.
        rules: the first change.
        last: the second change; by default drawn from `rules`.
    """
    people = [who, who + 1, who + 2]

    def pulls(chance: float, limits: list[int], fates: list[str]) -> list[Step]:
        chosen = [each for each in people if random.random() < chance]
        return [("pull", each, random.choice(limits), random.choice(fates)) for each in chosen]

    between: list[Step] = [("rest", who)]
    if random.random() < 0.5:  # rows that are sent by the first rules, while these are applied
        between = [("reload", who), *pulls(0.7, limits, FATES)]
    return [
        *pulls(0.7, [1000], ["whole"]),
        ("rules", who, random.choice(rules)),
        *between,
        ("rules", who, random.choice(last or rules)),
        *pulls(1.0, limits, FATES),
    ]


def _edit(random: Random, who: int, keys: list[tuple[str, str]]) -> Step:
    values: dict[str, Any] = {}
    if random.random() < 0.75:
        values["team"] = random.choice("aaaaabbbbbcdefg")
    if random.random() < 0.4:
        values["kind"] = random.choice("pq")
    for column in "xy":
        if random.random() < 0.4:
            values[column] = random.randint(0, 3)
    op = random.choice(["INSERT", "INSERT", "UPDATE", "UPDATE", "UPDATE", "DELETE"])
    return ("edit", who, op, *random.choice(keys), values, random.choice([0, 0, 1, 5]))


def _claims(random: Random) -> dict[str, Any]:
    return {"team": random.choice(TEAMS), "kinds": random.choice(KINDS), "level": random.choice(LEVELS)}
