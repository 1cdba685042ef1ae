"""Reduced histories that once gave a client wrong rows; the modules `cases_of_…` list most of them."""

from __future__ import annotations

import pytest

from tests.blackbox import cases_of_claims, cases_of_lines, cases_of_restarts, cases_of_writes
from tests.blackbox.cases import C, case, claims, edit, pull, push
from tests.blackbox.run import wrong
from tests.blackbox.server import Server

CASES = cases_of_claims.CASES | cases_of_restarts.CASES | cases_of_lines.CASES | cases_of_writes.CASES
CASES_OF_PROCESSES = {
    "a process broadcasts before it is notified of a pull with another token at another one": case(
        "stock stock", 1,
        ("connect", 0), pull(0), edit(1, "INSERT", "notes/r1", team="a"), push(1), ("hear", 0, 5.0),
        ("process", 1, 1), edit(1, "INSERT", "notes/r2", team="c"), push(1),
        ("hold", 0), ("process", 0, 1), ("other token", 0, C, 1000),
        ("process", 1, 0), edit(1, "INSERT", "notes/r3", team="a"), push(1), ("hear", 0, 5.0), ("release", 0),
        claims(0, team="c"),
    ),
    "a process misses the rows that another one sends over HTTP": case(
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


def test_a_process_that_cannot_listen_misses_rows_that_another_one_sends_over_http(own_database):
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
