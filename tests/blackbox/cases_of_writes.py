"""Histories with writes only: deletes, clocks, equal ids, several writers."""

from tests.blackbox.cases import NINE, A, B, case, claims, edit, pull, push

CASES = {
    "a row is deleted and updated in one push": case(
        "stock stock", 1,
        edit(0, "UPDATE", "notes/r3", team="a", x=3), push(0), pull(0),
        edit(0, "DELETE", "notes/r3"), edit(0, "UPDATE", "notes/r3", team="a", x=1),
    ),
    "a row keeps a column after its DELETE, but no client may see it": case(
        "stock named", 6,
        claims(1, team=["a", "b"], kinds=["p", "q"]),
        edit(0, "INSERT", "misc/m1", team="a", kind="p"), edit(1, "DELETE", "misc/m1", tick=0),
        edit(0, "UPDATE", "misc/m1", team="b", x=1),
    ),
    "an edit is newer than the delete before an insert": case(
        "letter stock", 2,
        claims(0, team="b"), edit(0, "INSERT", "notes/r2", team="a"), push(0), claims(0, team="a"),
        edit(0, "UPDATE", "notes/r2", x=2), edit(1, "UPDATE", "notes/r2", team="a", y=3), push(1),
    ),
    "a client updates a row that it deleted and another client inserted again": case(
        "named stock", 9,
        claims(1, kinds=["q"]), edit(0, "DELETE", "tasks/r1"), pull(0), push(0),
        edit(1, "UPDATE", "tasks/r1", tick=9, team="a", kind="q", y=3), push(1),
        edit(0, "UPDATE", "tasks/r1", tick=9, team="b", kind="q", x=1), claims(0, team=["a"], kinds=["q"]), push(0),
        claims(0, team=[], kinds="p"),
    ),
    "ids of one time have a common prefix": case(
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
    "an UPDATE is older than the DELETE that its client was sent before it inserted the row": case(
        "named stock", 1,
        edit(0, "UPDATE", "tasks/r1", team="e"), pull(0), push(0), pull(0, 1),
        edit(1, "UPDATE", "tasks/r1", tick=0, team="b", y=3),
        edit(0, "INSERT", "tasks/r1", tick=0, team="a", kind="q", x=3), push(0),
        clients=[("named", A, 3), ("stock", {**B, "team": ["a", "b"]}, -30)],
    ),
    "a row of a client that never pulled gets more writers than are kept": case(
        "stock stock", 1,
        edit(0, "INSERT", "tasks/r1", team="a"), push(0), *NINE,
    ),
    "a row that its client deleted, but no other, gets more writers than are kept": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/r1", team="a"), edit(1, "DELETE", "tasks/r1"), edit(1, "INSERT", "tasks/r1", team="a"),
        push(1), pull(0), pull(0), edit(0, "DELETE", "tasks/r1"), push(0), *NINE,
        clients=[("stock", A, -30), ("stock", B, 0)],
    ),
    "a client whose clock went back updates a row that it wrote before": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r1", team="a", x=1), push(0), pull(0), ("clock", 0, -50),
        edit(0, "UPDATE", "notes/r1", x=2), push(0),
    ),
}  # fmt: skip
