"""Random scenarios: sequences of steps that lead to states which single steps seldom reach."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.blackbox.steps import (
    DELAYS,
    FATES,
    MANY_TEAMS,
    Step,
    World,
    edit,
    edit_with,
    new_row,
    pushed_edits,
    single_steps,
    some_claims,
    some_columns,
)

_BETWEEN = ["claims", "claims", "other token", "rules", "edit", "push", "others", "others", "others"]
"""Steps between two pages."""

_AWAY = ["cut"] * 6 + ["connect"] * 2 + ["claims", "rules", "mine", "other token", "pull", "wipe"]
"""Steps between two connections."""


def steps_of(random: Random, kind: str, who: int, world: World) -> list[Step]:
    """Return the steps of a scenario, or of a single kind, by a client."""
    scenario = _SCENARIOS.get(kind)
    return scenario(random, who, world) if scenario is not None else single_steps(random, kind, who, world)


def _at_once(random: Random, who: int, world: World) -> list[Step]:
    """A client that often has every row sends a push and, with another token, a concurrent pull."""
    steps: list[Step] = random.choice([[], [("pull", who, 1000, "whole")], [("pull", who, 1000, "whole")] * 2])
    steps += [edit(random, who, world) for _ in range(random.choice([1, 1, 2]))]
    delivery = random.choice(["whole", "answer lost"])
    steps.append(("at once", who, some_claims(random, world), random.choice([*world.limits, 1000]), delivery))
    return [*steps, *random.choice([[], [("pull", who, random.choice(world.limits), "whole")]])]


def _in_doubt(random: Random, who: int, world: World) -> list[Step]:
    """A client loses a page, often under new rules or claims, and pushes.

    The gateway sends it the rows again that it may lack. Meanwhile it pulls with another token, or other changes
    follow.
    """
    small = [limit for limit in world.limits if limit < 5] or [1, 2]
    steps = [edit(random, each, world) for each in (who, who + 1) for _ in range(random.choice([1, 2]))]
    steps += [("push", who, "whole"), ("push", who + 1, "whole"), ("pull", who, random.choice(small), "whole")]
    for kind in random.choice([["rules"], ["rules", "rules"], ["claims"], [], ["other token"]]):
        steps += steps_of(random, kind, who, world)
    steps += [("pull", who, random.choice([*small, 1000]), "answer lost"), edit(random, who, world)]
    steps += [("push", who, "whole"), ("pull", who, random.choice(small), "whole")]
    for kind in random.choice([["other token"], ["other token"], ["other token", "pull", "other token"], ["push"], []]):
        steps += steps_of(random, kind, who, world)
    return [*steps, *random.choice([[], [("pull", who, random.choice(world.limits), random.choice(FATES))]])]


def _crowd(random: Random, who: int, world: World) -> list[Step]:
    """A client writes a row, and then more clients write it than a row stores; often some can no longer see it."""
    key = random.choice([*world.keys, new_row(random)])
    steps = pushed_edits(random, who, world, key)
    for x in range(9):
        steps += [
            ("device", who + 1, "stock"),
            ("edit", who + 1, "UPDATE", *key, {"x": x}, 1),
            ("push", who + 1, "whole"),
        ]
    if random.random() < 0.7:
        op = random.choice(["UPDATE", "UPDATE", "DELETE"])
        steps += [edit_with(random, who + 1, op, key, team=random.choice(world.letters)), ("push", who + 1, "whole")]
    return [*steps, *random.choice([[], [("pull", who, random.choice(world.limits), random.choice(FATES))]])]


def _between_pages(random: Random, who: int, world: World) -> list[Step]:
    """A client, often a new one, pulls pages after a change of its claims or rules, with other steps between them."""
    limit = random.choice([1, 1, 2])
    steps: list[Step] = []
    if random.random() < 0.5:
        steps += steps_of(random, "device", who, world)
        steps += random.choice([[], [edit(random, who, world), ("push", who, "whole")]])
    steps += steps_of(random, random.choice(["claims", "claims", "rules", "edit"]), who, world)
    steps += [edit(random, who + 1, world) for _ in range(random.choice([0, 2, 4]))]
    steps.append(("push", who + 1, "whole"))
    for _ in range(random.randint(1, 5)):
        for kind in random.choices(_BETWEEN, k=random.choice([0, 1, 1, 2, 3])):
            if kind == "others":
                steps += [edit(random, who + 1, world) for _ in range(random.choice([1, 2, 4, 6]))]
                steps.append(("push", who + 1, "whole"))
            else:
                steps += steps_of(random, kind, who, world)
        steps.append(("pull", who, limit, random.choice(FATES)))
    return steps


def _unissued_cursor(random: Random, who: int, world: World) -> list[Step]:
    """A pull with a cursor that was never issued, then other claims, and rows that only the first claims show."""
    first, then = some_claims(random, world), some_claims(random, world)
    steps: list[Step] = [("device", who, random.choice(world.devices))] if random.random() < 0.8 else []
    steps += random.choice([[], pushed_edits(random, who + 1, world)])
    steps += [("claims", who, first), *steps_of(random, "odd pull", who, world), ("claims", who, then)]
    steps += [("pull", who, random.choice(world.limits), random.choice(FATES)) for _ in range(random.choice([1, 1, 2]))]
    rows = [random.choice([*world.keys, new_row(random)]) for _ in range(random.choice([1, 2, 4]))]
    steps += [edit_with(random, who + 1, "INSERT", key, team=random.choice(first["team"] or ["a"])) for key in rows]
    steps += [("push", who + 1, "whole"), *random.choice([[], [("wipe", who)], [("reload", who)]])]
    return [*steps, ("pull", who, random.choice(world.limits), "whole")]


def _started_again(random: Random, who: int, world: World) -> list[Step]:
    """A client pulls small pages from cursor 0, with its own and others' pushes between them."""
    steps: list[Step] = [("push", who, "whole"), ("pull", who, 1000, "whole"), *pushed_edits(random, who, world)]
    steps += random.choice([[], [("pull", who, 1000, "whole")]])
    steps.append((random.choice(["wipe", "wipe", "reload", "restore"]), who))
    for _ in range(random.randint(1, 4)):
        steps.append(("pull", who, random.choice([1, 1, 2]), random.choice(FATES)))
        steps += pushed_edits(random, random.choice([who, who + 1]), world) if random.random() < 0.6 else []
    return steps


def _late_pull(random: Random, who: int, world: World) -> list[Step]:
    """A client starts again from 0; then its earlier pulls arrive late, and then it pushes."""
    steps: list[Step] = [*pushed_edits(random, who + 1, world), *pushed_edits(random, who, world)]
    steps += [("pull", who, random.choice([1, 1, 2, 1000]), "whole") for _ in range(random.choice([2, 3, 4]))]
    steps += random.choice([[], [*pushed_edits(random, who, world), ("pull", who, 1000, "whole")]])
    for _ in range(random.choice([1, 1, 1, 2])):
        steps += [(random.choice(["wipe", "reload", "restore"]), who), ("pull", who, 1, "whole")]
    steps += random.choice([[], [], [("pull", who, 1000, "answer lost")]])
    steps += random.choice([[], pushed_edits(random, who + 1, world)])
    steps += [("old pull", who, random.randint(2, 5)) for _ in range(random.choice([1, 1, 2]))]
    return [*steps, *pushed_edits(random, who, world)]


def _late_tokens(random: Random, who: int, world: World) -> list[Step]:
    """A client's claims change; after its page, pulls with another token arrive from the cursor before the page."""
    steps: list[Step] = pushed_edits(random, who + 1, world)
    for _ in range(random.choice([1, 2, 3])):
        steps += [("claims", who, some_claims(random, world)), ("pull", who, random.choice([1000, 1000, 2]), "whole")]
    steps += random.choice([[], [], steps_of(random, "rules", who, world), pushed_edits(random, who + 1, world)])
    steps += [("pull", who, random.choice(world.limits), random.choice(["whole", "answer lost"]))] * random.choice(
        [0, 1]
    )
    for _ in range(random.choice([1, 1, 2])):
        steps.append(
            ("late token", who, some_claims(random, world), random.choice([1000, 2]), random.choice([1, 1, 2]))
        )
    return [*steps, *pushed_edits(random, who, world), ("pull", who, 1000, "whole")]


def _returned(random: Random, who: int, world: World) -> list[Step]:
    """A client inserts again a row that it cannot see, because of its claims or its own change."""
    key = random.choice([*world.keys, *(new_row(random) for _ in world.keys)])
    there, here = random.sample(sorted(set(world.letters)), 2)
    mine = {**some_claims(random, world), "team": here}
    hidden: list[Step] = [
        ("claims", who, mine),
        edit_with(random, who, "UPDATE", key, team=there),
        ("push", who, "whole"),
    ]
    moved: list[Step] = [
        ("claims", who, {**mine, "team": random.choice([there, [there, here]])}),
        *(edit_with(random, who, random.choice(["INSERT", "UPDATE"]), key, team=there) for _ in range(2)),
        ("push", who, "whole"),
        *random.choice([[], [("pull", who, 1000, "whole")]]),
        ("claims", who, mine),
    ]
    pulls: list[Step] = [("pull", who, random.choice(world.limits), "whole") for _ in range(random.choice([1, 2]))]
    again: Step = ("edit", who, "INSERT", *key, {"team": here, **some_columns(random, 0.2)}, random.choice([0, 1, 5]))
    pushed: list[Step] = random.choice([[], [("push", who, random.choice(FATES))]])
    return [*random.choice([hidden, moved]), *pulls, again, *pushed]


def _overwritten(random: Random, who: int, world: World) -> list[Step]:
    """A row of a client whose columns others overwrite, before the client's database is put back from a backup."""
    key = new_row(random)
    team = random.choice(world.letters)
    pull: Step = ("pull", who, 1000, "whole")
    steps: list[Step] = [("device", who, random.choice(["named", *world.devices]))] if random.random() < 0.6 else []
    steps += [pull, ("push", who, "whole"), pull, ("backup", who)]
    steps += [edit_with(random, who, "INSERT", key, team=team), ("push", who, "whole")]
    steps += random.choice([[], [pull]])
    steps += [
        ("edit", who + 1, random.choice(["INSERT", "UPDATE"]), *key, {"team": team, **some_columns(random, 0.9)}, 5)
    ]
    steps += [("push", who + 1, "whole"), *random.choice([[], [pull]])]
    return [*steps, ("restore", who), ("pull", who, random.choice(world.limits), random.choice(FATES))]


def _three_scopes(random: Random, who: int, world: World) -> list[Step]:
    """A client changes its claims twice and pulls small pages, while rows move between the three teams that it saw."""
    teams = random.sample("abc", 3)
    claims = [{**some_claims(random, world), "team": team} for team in teams]

    def others(keys: list[tuple[str, str]], ops: list[str], among: list[str]) -> list[Step]:
        moved = [edit_with(random, who + 1, random.choice(ops), key, team=random.choice(among)) for key in keys]
        return [*moved, ("push", who + 1, "whole")]

    def moves() -> list[Step]:
        return others(random.choices(world.keys, k=random.choice([1, 2, 3])), ["INSERT", "UPDATE", "UPDATE"], teams)

    def pages() -> list[Step]:
        return [("pull", who, 1, random.choice(["whole", *FATES])) for _ in range(random.choice([1, 1, 2, 2, 3]))]

    steps: list[Step] = [("device", who, random.choice(world.devices))] if random.random() < 0.8 else []
    steps += [("claims", who, claims[0]), edit_with(random, who, "INSERT", new_row(random), team=teams[0])]
    steps += [("push", who, "whole"), ("claims", who, claims[1])]
    steps += [*others(world.keys, ["INSERT"], [teams[1]] * 3 + teams), *pages(), *moves(), *moves()]
    return [*steps, ("claims", who, claims[2]), *pages(), *random.choice([[], moves()]), *pages()]


def _in_turns(random: Random, who: int, world: World) -> list[Step]:
    """A client pulls small pages, and its other tokens pull until the gateway forgets its earliest claims.

    It wrote or received rows under claims that it no longer has. Sometimes its tokens have so many teams that keys of
    its earliest claims are forgotten too; then it restarts at the end.
    """
    live = "named" not in world.devices
    wide = random.random() < 0.2
    tokens = [some_claims(random, world) for _ in range(random.choice([2, 3, 3, 4]))]
    teams = [team for token in tokens for team in token["team"]] or [*world.letters]
    others = [{**token, "team": [*token["team"], *MANY_TEAMS]} for token in tokens] if wide else tokens

    def written(writer: int, most: int) -> list[Step]:
        rows = [new_row(random) if random.random() < 0.6 else random.choice(world.keys) for _ in range(most)]
        edits = [
            edit_with(random, writer, random.choice(["INSERT", "UPDATE"]), key, team=random.choice(teams))
            for key in rows
        ]
        return [*edits, ("push", writer, random.choice(["whole", *FATES]))]

    def pulls() -> list[Step]:
        return [
            ("pull", who, random.choice([1, 1, 2, 1000]), random.choice(FATES)) for _ in range(random.choice([0, 1, 1]))
        ]

    steps: list[Step] = [("device", who, random.choice(world.devices))] if random.random() < 0.5 else []
    steps += [] if random.random() < 0.5 else [*written(who + 1, random.choice([1, 3])), *pulls()]
    for token in random.sample(tokens, 2):
        steps += [("claims", who, token), *random.choice([pulls(), written(who, 1), [*written(who, 2), *pulls()]])]
        steps += [("connect", who), ("hear", who)] if live and random.random() < 0.4 else []
        steps += written(who + 1, random.choice([1, 2, 4]))
    steps.append(("claims", who, random.choice(tokens)))
    for _ in range(random.randint(7, 12) if wide else random.randint(2, 7)):
        for _ in range(random.choice([0, 1, 2, 4])):
            steps.append(("other token", who, random.choice(others), random.choice([1, 1, 2, 1000])))
        extra = random.choices(["", "mine", "others", "moved", "claims"], [6, 2, 2, 2, 1])[0]
        if extra == "mine":
            steps += written(who, 1)
        elif extra == "others":
            steps += written(who + 1, random.choice([1, 2]))
        elif extra == "moved":
            steps += [edit_with(random, who + 1, "UPDATE", random.choice(world.keys), team=random.choice(teams))]
            steps += [("push", who + 1, "whole")]
        elif extra == "claims":
            steps.append(("claims", who, random.choice(tokens)))
        steps.append(("pull", who, random.choice([1, 1, 1, 2]), random.choice(["whole", *FATES])))
    return [*steps, ("claims", who, some_claims(random, world)), ("reload", who)] if wide else steps


def _crossing(random: Random, who: int, world: World) -> list[Step]:
    """Concurrent requests of one client and of others, often when the client has every row."""
    steps: list[Step] = random.choice([[], [("pull", who, 1000, "whole")] * 2])
    limit = random.choice([*world.limits, 1000])
    others: list[Step] = [*pushed_edits(random, who + 1, world)]
    mine: list[Step] = [edit(random, who, world), ("push", who, random.choice(["whole", "answer lost"]))]
    requests: list[list[Step]] = [
        others,
        [("pull", who, limit, random.choice(FATES))],
        random.choice([mine, [("other token", who, some_claims(random, world), limit)]]),
        random.choice([[("pull", who + 1, limit, "whole")], [("old pull", who, 1)], [("old push", who, 1)]]),
    ]
    random.shuffle(requests)
    for request in requests[: random.choice([2, 3, 3, 4])]:
        for step in request:
            steps += [("and", 0, random.choice(DELAYS)), step]
    return [*steps, *random.choice([[], [("pull", who, random.choice(world.limits), "whole")]])]


def _late(random: Random, who: int, world: World) -> list[Step]:
    """A client's WebSocket is at a process that is notified late of another process's commits.

    Often the client also sends a pull with another token.
    """
    here, there = random.sample([0, 1], 2)
    steps: list[Step] = random.choice([[], [*_connected(random, who, here), ("hear", who)]])
    token = some_claims(random, world)
    steps += [("hold", who), ("process", who, there), ("process", who + 1, there)]
    for kind in random.choices(["token", "edit", "push", "others", "rules"], [6, 2, 2, 4, 1], k=random.randint(1, 3)):
        match kind:
            case "token":
                steps.append(("other token", who, token, random.choice([*world.limits, 1000])))
            case "others":
                steps += pushed_edits(random, who + 1, world)
            case _:
                steps += steps_of(random, kind, who, world)
    steps += [("process", who + 1, here), *pushed_edits(random, who + 1, world), ("hear", who, 0.05)]
    after = random.choice([[], [("claims", who, token)], [("claims", who, token), ("pull", who, 1000, "whole")]])
    return [*steps, ("release", who), ("process", who, here), *after]


def _heard_nothing(random: Random, who: int, world: World) -> list[Step]:
    """A client's WebSocket is at a process that misses the rows which another process sends to the client over HTTP."""
    steps: list[Step] = random.choice([[], [*_connected(random, who, random.choice([0, 1]))]])
    steps += [edit(random, who + 1, world) for _ in range(random.choice([1, 2, 4]))]
    return [*steps, ("deaf", who, who + 1, random.choice(world.limits))]


def reconnected(random: Random, who: int, world: World) -> list[Step]:
    """A client's WebSocket brings rows and is lost, others change rows, and the client reconnects without a pull."""
    key = random.choice(world.keys)
    steps: list[Step] = [("push", who, "whole"), ("connect", who), ("pull", who, 1000, "whole")]
    steps += [*pushed_edits(random, who + 1, world, key), ("hear", who, 0.05), ("cut", who)]
    return [*steps, *pushed_edits(random, who + 1, world, key), ("connect", who)]


def never_pulled(random: Random, who: int, world: World) -> list[Step]:
    """A new client only pushes, on a WebSocket or before it connects, and connects again; sometimes it pulls later.

    Others change rows meanwhile, some of which its WebSockets bring.
    """
    key = random.choice([*world.keys, new_row(random)])
    own = pushed_edits(random, who, world, random.choice([key, None]))
    steps: list[Step] = [("device", who, random.choice(world.devices))]
    steps += random.choice([[], pushed_edits(random, who + 1, world, key)])
    steps += random.choice([[("connect", who), *own], [*own, ("connect", who)]])
    for _ in range(random.choice([1, 1, 2, 3])):
        steps += [*pushed_edits(random, who + 1, world, random.choice([key, None])), ("hear", who, 0.05)]
        match kind := random.choice(_AWAY):
            case "mine":
                steps += pushed_edits(random, who, world, random.choice([key, None]))
            case "pull":
                steps.append(("pull", who, random.choice(world.limits), random.choice(["whole", "answer lost"])))
            case "wipe":
                steps += [("wipe", who), ("pull", who, 1, random.choice(FATES)), *pushed_edits(random, who, world)]
            case _:
                steps += steps_of(random, kind, who, world)
        steps += random.choice([[], pushed_edits(random, who + 1, world, key)])
        steps.append(("connect", who))
    return [*steps, *random.choice([[], [], [("pull", who, random.choice(world.limits), "whole")]])]


def _connected(random: Random, who: int, process: int) -> list[Step]:
    """Open a new WebSocket of a client to a process and pull on it; open those of others."""
    others: list[Step] = random.choice([[], [("cut", who + 1)]])
    return [*others, ("push", who, "whole"), ("process", who, process), ("connect", who), ("pull", who, 1000, "whole")]


def changed_twice(random: Random, who: int, world: World, last: list[int] | None = None) -> list[Step]:
    """Change rules twice: few or no clients pull under the first rules, and all pull while the second ones are applied.

    Rows are written before the first change; clients may have pulled them.

    Args:
        random: what it is drawn with.
        who: the first who pulls.
        world: its rules are for the first change.
        last: rules for the second change; by default the same.
    """
    people = [who, who + 1, who + 2]

    def pulls(chance: float, limits: list[int], deliveries: list[str]) -> list[Step]:
        chosen = [each for each in people if random.random() < chance]
        return [("pull", each, random.choice(limits), random.choice(deliveries)) for each in chosen]

    def written() -> list[Step]:
        writer = random.choice(people)
        edits = [edit_with(random, writer, "UPDATE", key, team=random.choice(world.letters)) for key in world.keys]
        return [*edits, ("push", writer, "whole")]

    before: list[Step] = []
    between: list[Step] = [("rest", who)]
    first, unpulled = random.choice(world.rules), random.choice([[], written()])
    if random.random() < 0.5:  # rows that are sent under the first rules while these are applied
        if random.random() < 0.5:  # rules that show the same rows under other keys, then rules that hide some of them
            before, first, last = [("rules", who, 1), ("rest", who)], 2, [3, 5]
            teams = random.choices(world.letters, k=4)
            rows: list[Step] = [edit_with(random, who + 1, "INSERT", new_row(random), team=team) for team in teams]
            unpulled = [*rows, ("push", who + 1, "whole")]
        reloads: list[Step] = [("reload", each) for each in people if each == who or random.random() < 0.5]
        between = [*reloads, *pulls(0.7, world.limits, FATES)]
    return [
        *before,
        *written(),
        *pulls(0.9, [1000], ["whole"]),
        *unpulled,
        ("rules", who, first),
        *between,
        ("rules", who, random.choice(last or world.rules)),
        *pulls(1.0, world.limits, FATES),
    ]


_SCENARIOS: dict[str, Callable[[Random, int, World], list[Step]]] = {
    "at once": _at_once,
    "crowd": _crowd,
    "rules, then others": changed_twice,
    "between pages": _between_pages,
    "in doubt": _in_doubt,
    "start again": _started_again,
    "late pull": _late_pull,
    "late tokens": _late_tokens,
    "unissued cursor": _unissued_cursor,
    "return": _returned,
    "overwritten": _overwritten,
    "three scopes": _three_scopes,
    "tokens in turns": _in_turns,
    "crossing": _crossing,
    "late": _late,
    "deaf": _heard_nothing,
}
"""Kinds of scenarios."""
