"""Single steps of a history at random: what a client, an operator or the network does next."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

Step = tuple[Any, ...]
KEYS = [("notes", "r1"), ("notes", "r2"), ("notes", "r3"), ("tasks", "r1"), ("tasks", "t2"), ("misc", "m1")]
TABLES = sorted({table for table, _ in KEYS})
KINDS: list[Any] = [["p"], ["q"], ["p", "q"], "p"]
LEVELS = ["0", "1", "2"]
MANY_TEAMS = [f"t{number}" for number in range(300)]
"""Teams without rows."""
FATES = ["whole"] * 5 + ["answer lost", "request lost"]
DELAYS = [0.0, 0.0, 0.0, 0.001, 0.002, 0.004, 0.008]
"""Seconds between the first request of a group and another one."""


class World(NamedTuple):
    """The state from which a history's steps are drawn."""

    keys: list[tuple[str, str]]
    limits: list[int]
    rules: list[int]
    teams: list[Any]
    """The values for claims."""
    devices: list[str]
    """Kinds of clients."""
    letters: str
    """The teams of rows, repeated by their frequency."""


def single_steps(random: Random, kind: str, who: int, world: World) -> list[Step]:
    """Return a step of a kind by a client; some kinds are several consecutive steps."""
    match kind:
        case "edit":
            return [edit(random, who, world) for _ in range(random.choice([1, 1, 1, 2, 4]))]
        case "pull":
            return [(kind, who, random.choice(world.limits), random.choice(FATES))]
        case "push":
            return [(kind, who, random.choice(FATES))]
        case "device":
            return [(kind, who, random.choice(world.devices))]
        case "claims":
            return [(kind, who, some_claims(random, world))]
        case "erase":
            return [(kind, who, *random.choice(world.keys))]
        case "other token":
            return [(kind, who, some_claims(random, world), random.choice(world.limits))]
        case "late token":
            return [(kind, who, some_claims(random, world), random.choice(world.limits), random.choice([1, 1, 2, 3]))]
        case "rules":
            return [(kind, who, random.choice(world.rules))]
        case "clock":
            return [(kind, who, random.choice([-1000, -50, -5, 50]))]
        case "old pull" | "old push":
            return [(kind, who, random.randint(1, 4))]
        case "odd pull":
            return [(kind, who, random.choice(["near", "ahead", "below"]), random.choice(world.limits))]
        case "cross":
            return [("edit", who + 1, *edit(random, who, world)[2:]), (kind, who, random.choice(world.limits))]
    return [(kind, who)]


def edit(random: Random, who: int, world: World, key: tuple[str, str] | None = None) -> Step:
    values: dict[str, Any] = {}
    if random.random() < 0.75:
        values["team"] = random.choice(world.letters)
    if random.random() < 0.4:
        values["kind"] = random.choice("pq")
    for column in "xy":
        if random.random() < 0.4:
            values[column] = random.randint(0, 3)
    op = random.choice(["INSERT", "INSERT", "UPDATE", "UPDATE", "UPDATE", "DELETE"])
    return ("edit", who, op, *(key or random.choice(world.keys)), values, random.choice([0, 0, 1, 5]))


def some_claims(random: Random, world: World) -> dict[str, Any]:
    return {"team": random.choice(world.teams), "kinds": random.choice(KINDS), "level": random.choice(LEVELS)}


def pushed_edits(random: Random, who: int, world: World, key: tuple[str, str] | None = None) -> list[Step]:
    """Some edits of a client, of one row if that is given, and their push."""
    return [*(edit(random, who, world, key) for _ in range(random.choice([1, 1, 2, 4]))), ("push", who, "whole")]


def new_row(random: Random) -> tuple[str, str]:
    """A row that probably no client has written."""
    return random.choice(TABLES), f"n{random.randint(0, 99)}"


def edit_with(random: Random, who: int, op: str, key: tuple[str, str], **values: object) -> Step:
    """An edit that sets these columns, and perhaps others."""
    return ("edit", who, op, *key, {**some_columns(random, 0.5), **values}, random.choice([0, 1, 5]))


def some_columns(random: Random, chance: float) -> dict[str, object]:
    """Random columns other than the team."""
    values = {"kind": random.choice("pq"), "x": random.randint(0, 3), "y": random.randint(0, 3)}
    return {column: value for column, value in values.items() if random.random() < chance}
