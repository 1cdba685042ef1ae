"""Histories with WebSocket connections."""

from tests.blackbox.cases import NINE, SIX, A, C, case, claims, edit, pull, push

CASES = {
    "a broadcast that crosses a pull brings a row under a new key": case(
        "stock stock", 8,
        edit(1, "INSERT", "notes/r1", team="b"), push(1), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/r2", team="c"), push(1), pull(0),
    ),
    "a client that connects again gets new rows before it pulls": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0),
        edit(1, "UPDATE", "notes/r1", x=1), edit(1, "INSERT", "notes/r2", team="a"), push(1),
        ("connect", 0), edit(1, "INSERT", "notes/r3", team="a"), edit(1, "DELETE", "notes/r1"), push(1),
    ),
    "a client that lost its database connects and gets new rows": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1), pull(0), pull(0), ("wipe", 0), ("connect", 0),
        edit(1, "INSERT", "notes/r2", team="a"), push(1), ("hear", 0), ("hear", 0),
    ),
    "connections with several claims stay open": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), edit(1, "INSERT", "notes/r2", team="a"),
        edit(1, "INSERT", "notes/r3", team="b"), push(1),
        pull(0), ("connect", 0), ("connect", 0), claims(0, team="b"),
        pull(0), ("connect", 0), ("connect", 0), claims(0, team="a"),
        limit=1,
    ),
    "claims change after a connection and a row becomes visible and hidden": case(
        "stock stock", 1,
        ("connect", 0), pull(0), claims(0, team="b"), pull(0), claims(0, team="c"),
        edit(1, "INSERT", "notes/r1", team="b"), push(1), edit(1, "DELETE", "notes/r1"), push(1),
    ),
    "a broadcast without a cursor under other claims is followed by pulls with more tokens than are kept": case(
        "stock stock", 1,
        edit(1, "INSERT", "tasks/t2", team="b"), push(1), *SIX, push(1), pull(0, 1), pull(0, 1),
        claims(0, team="b"), ("connect", 0), edit(1, "INSERT", "tasks/t3", team="b"), push(1), ("hear", 0),
        *[("other token", 0, {**A, "team": team}, 1) for team in "cdcdcdcdcd"], claims(0),
        limit=1,
    ),
    "a small page with another token comes beside a WebSocket, before rows that only the WebSocket shows": case(
        "stock stock", 1,
        edit(1, "INSERT", "misc/m1", team="a"), push(1), pull(0), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/n1", team="c"), edit(1, "INSERT", "notes/n2", team="c"), push(1),
        ("other token", 0, C, 1), edit(1, "INSERT", "misc/m2", team="z"), push(1),
        edit(1, "INSERT", "tasks/t1", team="a"), push(1), ("hear", 0), ("hear", 0), claims(0, team="c"),
    ),
    "a client that pushed before it ever pulled connects with other claims": case(
        "stock stock", 1,
        edit(0, "INSERT", "notes/r2", team="c"), push(0), claims(0, team="b"), ("connect", 0),
        edit(1, "INSERT", "tasks/r1", team="a"), push(1), *NINE,
    ),
    "a row that a WebSocket brought becomes hidden while the connection is lost": case(
        "stock stock", 4,
        edit(1, "INSERT", "notes/r2", x=1), push(1), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/r1", x=1), push(1), ("hear", 0, 5.0), ("cut", 0),
        edit(1, "UPDATE", "notes/r1", x=0), push(1), ("connect", 0),
    ),
    "a client that got a broadcast sends a cursor that was never issued, with other claims": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1), ("connect", 0), pull(0),
        edit(1, "INSERT", "notes/r2", team="a"), push(1), ("hear", 0, 5.0), ("cut", 0),
        claims(0, team=["b"]), ("odd pull", 0, "ahead", 1000),
    ),
    "a client that only pushed connects, and gets what others write": case(
        "stock stock", 1,
        edit(1, "INSERT", "notes/r1", team="a"), push(1),
        edit(0, "INSERT", "notes/r2", team="a"), push(0), ("connect", 0), ("hear", 0, 5.0),
        edit(1, "INSERT", "notes/r3", team="a"), push(1),
    ),
    "a client connects, pushes for the first time, and gets what others write": case(
        "stock stock", 1,
        ("connect", 0), edit(0, "INSERT", "notes/r2", team="a"), push(0), edit(1, "INSERT", "notes/r1", team="a"),
        push(1),
    ),
    "a row that a WebSocket brought to a client that only pushed becomes hidden while the connection is lost": case(
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
