"""Histories in which a client loses its database or restores a backup, or a request is late, repeated or odd."""

from tests.blackbox.cases import GLIMPSE, IN_TURNS, SIX, THREE, A, B, case, claims, edit, pull, push

CASES = {
    "a client starts again after its tokens with many teams alternated": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/t2", team="c"), push(1), claims(0, team="c"), pull(0),
        edit(1, "INSERT", "notes/r1", team="a"), push(1), claims(0), pull(0),
        *IN_TURNS, claims(0, team="t0"), ("reload", 0),
    ),
    "edits of a backup are pushed again after their row was hidden": case(
        "named", 8,
        edit(0, "UPDATE", "misc/m1", kind="q"), ("backup", 0), pull(0), push(0), ("restore", 0),
    ),
    "a push names a cursor that was never issued": case(
        "named stock", 1,
        pull(0), edit(1, "INSERT", "notes/r1", team="a"), push(1),
        edit(0, "INSERT", "notes/r2", team="a"), ("odd push", 0),
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
    "edits of a backup are pushed again from a later cursor": case(
        "named", 6,
        pull(0), edit(0, "INSERT", "tasks/r1", kind="q"), ("backup", 0), push(0), ("restore", 0),
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
    "a backup lacks a row that its client inserted and others overwrote": case(
        "named stock", 0,
        pull(0), ("backup", 0), edit(1, "INSERT", "misc/m1", x=1), push(1),
        edit(0, "INSERT", "notes/r1", x=1), edit(1, "INSERT", "notes/r1", x=2), push(0), push(1), ("restore", 0),
    ),
    "edits of a backup are pushed again after their row was deleted and inserted again": case(
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
    "edits of a backup are pushed again beside a new one, after their row was deleted": case(
        "named stock", 1,
        edit(0, "INSERT", "tasks/t2", y=3), edit(0, "UPDATE", "tasks/t2", team="a", y=2),
        ("backup", 0), pull(0), push(0),
        edit(1, "DELETE", "tasks/t2"), edit(1, "UPDATE", "tasks/t2", tick=0, team="a", kind="q"), pull(1), push(1),
        ("restore", 0), edit(0, "UPDATE", "tasks/t2", tick=5, team="a"),
    ),
    "an old pull is repeated after its client was restored from a backup": case(
        "letter letter", 7,
        edit(0, "INSERT", "tasks/t2", team="b", y=1), push(0), ("backup", 1), pull(1, 2), pull(1, 2), ("restore", 1),
        pull(1, 1000, "answer lost"), ("old pull", 1, 2), edit(1, "INSERT", "notes/r2", kind="q"), push(1),
        limit=5,
    ),
    "an old pull arrives after its client started again, and is answered without deltas": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r3", team="f"), push(1), pull(0), push(0), pull(0),
        edit(0, "INSERT", "notes/r1", team="a"), push(0), pull(0), ("wipe", 0),
        pull(0, 1), ("old pull", 0, 3), edit(0, "UPDATE", "notes/r3", team="b"), push(0),
    ),
    "an old pull arrives after its client started again, and brings another row": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r3", team="f"), push(1), pull(0), push(0), pull(0),
        edit(0, "INSERT", "notes/r1", team="a"), push(0), pull(0), ("wipe", 0),
        pull(0, 1), edit(1, "INSERT", "notes/r2", team="a"), push(1), ("old pull", 0, 3),
        edit(0, "UPDATE", "notes/r3", team="b"), push(0),
    ),
    "an old pull arrives after its client started again, and other shards have no rows for its first page": case(
        "letter stock", 0,
        edit(1, "INSERT", "misc/m1", team="a"), edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0), pull(0),
        ("wipe", 0), pull(0, 1), ("old pull", 0, 2), edit(0, "UPDATE", "misc/m1", team="c"), push(0),
        limit=1,
    ),
    "an old pull arrives after its client started again and lost the last page": case(
        "stock stock", 0,
        *THREE, push(1), pull(0), pull(0), ("wipe", 0), pull(0, 1), pull(0, 1000, "answer lost"), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "an old pull arrives after its client was restored from a backup and lost the last page": case(
        "letter letter", 0,
        edit(1, "INSERT", "notes/r2", team="f"), push(1), pull(0), ("backup", 0), *THREE, push(1), pull(0), pull(0),
        ("restore", 0), pull(0, 1), pull(0, 1000, "answer lost"), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "two old pulls arrive after their client started again": case(
        "letter letter", 0,
        *THREE[:2], push(1), pull(0), THREE[2], push(1), pull(0), pull(0), ("wipe", 0), pull(0, 1), ("old pull", 0, 3),
        ("old pull", 0, 2), edit(0, "INSERT", "notes/r1", team="a"), push(0),
    ),
    "an old pull arrives after its client started again twice": case(
        "stock stock", 1,
        *SIX[:3], push(1), claims(0, team="b"), edit(0, "INSERT", "notes/r1", team="b"), push(0), pull(0), claims(0),
        pull(0), pull(0), ("wipe", 0), pull(0, 1), ("wipe", 0), pull(0, 1), ("old pull", 0, 3),
        edit(0, "INSERT", "notes/r2", team="a"), push(0),
    ),
    "an old pull of an earlier page than the latest arrives after its client started again": case(
        "stock stock", 0,
        *THREE, push(1), pull(0, 1), pull(0), edit(0, "INSERT", "tasks/r1", x=1), push(0), ("wipe", 0),
        pull(0, 1), pull(0, 1), pull(0, 1), ("old pull", 0, 4), edit(0, "INSERT", "tasks/t2", x=1), push(0),
    ),
    "an old pull of the middle of its pages arrives after its client started again": case(
        "stock letter", 0,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"),
        edit(1, "INSERT", "notes/r3", team="a"), push(1), pull(0, 1), pull(0, 1), pull(0, 1), ("wipe", 0),
        pull(0, 1), ("old pull", 0, 2), edit(0, "INSERT", "tasks/r1", team="b"), push(0),
    ),
    "an unknown cursor gets no row of a shard, and another one comes after other claims brought a row": case(
        "stock letter", 8,
        edit(1, "INSERT", "misc/n70", team="b"), edit(1, "INSERT", "tasks/r1", team="c"), push(1),
        ("odd pull", 0, "ahead", 2), claims(0, team=["a"]), pull(0, 2), claims(0, team=["b"]),
        ("odd pull", 0, "below", 1),
        clients=[("stock", {**A, "team": ["a", "b"]}, 0), ("letter", B, 0)],
    ),
    "a row becomes visible and hidden between two pulls with earlier claims, after a repeated push with others": case(
        "stock stock", 1,
        edit(0, "INSERT", "tasks/t2", team="a"), push(0, "answer lost"), claims(0, team="c"),
        pull(0, 1000, "answer lost"), claims(0), push(0, "answer lost"), *GLIMPSE,
        claims(0, team="c"), pull(0, 1000, "answer lost"), claims(0),
    ),
    "a client that lost its database pushes before a page has reached its row": case(
        "stock", 4,
        edit(0, "INSERT", "tasks/r1", x=1), edit(0, "UPDATE", "misc/m1", x=3), push(0),
        ("wipe", 0), pull(0, 1, "answer lost"), edit(0, "DELETE", "notes/r3"), push(0),
        clients=[("letter", B, 0)],
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
    "a restored client repeats a change that a DELETE covers, and a newer one": case(
        "stock named", 1,
        edit(0, "DELETE", "notes/r1"), edit(1, "UPDATE", "notes/r1", -25, team="b", x=2), push(0),
        edit(1, "UPDATE", "notes/r1", 50, team="b"), pull(1), ("backup", 1), push(1), ("restore", 1),
    ),
}  # fmt: skip
