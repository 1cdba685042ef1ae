"""Single cases of the feed: it sends a client only the changes that it lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lakesync.model.errors import NotFoundError
from lakesync.model.types import SyncPull
from tests.property.feed_history import START, History
from tests.property.feed_steps import ROWS, RULES


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A gateway without rules, and three clients."""
    with closing(History(tmp_path)) as opened:
        yield opened


@pytest.fixture
def history_with_rules(tmp_path: Path) -> Iterator[History]:
    """A gateway with the rules `RULES[1]`, and three clients."""
    with closing(History(tmp_path, rules=1)) as opened:
        yield opened


def test_renaming_a_bucket_sends_its_clients_nothing(history_with_rules: History) -> None:
    gateway, (writer, _, reader) = history_with_rules.world.gateway, history_with_rules.clients
    for row_id in ROWS:
        writer.edit("INSERT", row_id, {"group": "a"}, START)
    writer.push(gateway)
    reader.catch_up(gateway, 10)
    history_with_rules._set_rules(RULES[2], whole=False)
    assert not reader.ask(gateway, 10).deltas
    history_with_rules._reindex(2)
    assert not reader.ask(gateway, 10).deltas
    history_with_rules._reindex(10)
    assert not reader.ask(gateway, 10).deltas
    assert reader.rows.keys() == set(ROWS)


def test_new_rules_delete_hidden_rows_immediately_and_send_nothing_else(history_with_rules: History) -> None:
    gateway, (writer, _, reader) = history_with_rules.world.gateway, history_with_rules.clients
    for place, row_id in enumerate(ROWS):
        writer.edit("INSERT", row_id, {"group": "a", "x": place}, START)
    writer.push(gateway)
    reader.catch_up(gateway, 10)
    history_with_rules._set_rules(RULES[3], whole=False)
    page = reader.ask(gateway, 10)
    assert {(delta.op, delta.row_id) for delta in page.deltas} == {("DELETE", "r1"), ("DELETE", "r3")}
    again = reader.ask(gateway, 10)
    assert again.deltas == page.deltas


def test_additional_claims_send_only_the_new_rows_in_pages(history_with_rules: History) -> None:
    gateway, (writer, other, reader) = history_with_rules.world.gateway, history_with_rules.clients
    writer.edit("INSERT", "r1", {"group": "a"}, START)
    writer.push(gateway)
    for row_id in ["r2", "r3"]:
        other.edit("INSERT", row_id, {"group": "b"}, START)
    other.push(gateway)
    reader.catch_up(gateway, 10)
    reader.claims = {**reader.claims, "group": ["a", "b"]}
    operations = []
    for _ in range(2):
        page = reader.ask(gateway, 1)
        operations += [(delta.op, delta.row_id) for delta in page.deltas]
        reader.take(page)
    assert sorted(operations) == [("INSERT", "r2"), ("INSERT", "r3")]
    assert not reader.ask(gateway, 1).deltas


def test_a_client_that_diverged_is_sent_updates_after_its_repair(history: History) -> None:
    gateway, (astray, other, _) = history.world.gateway, history.clients
    other.edit("INSERT", "r1", {"x": 1}, START)
    other.push(gateway)
    astray.edit("UPDATE", "r1", {"y": 1}, START)
    astray.push(gateway)
    astray.catch_up(gateway, 10)
    for turn in range(2):
        astray.edit("UPDATE", "r1", {"y": 2 + turn}, START + 1 + turn)
        astray.push(gateway)
        other.edit("UPDATE", "r1", {"x": 2 + turn}, START + 1 + turn)
        other.push(gateway)
        page = astray.ask(gateway, 10)
        astray.take(page)
        assert [(delta.op, [part.column for part in delta.columns]) for delta in page.deltas] == [("UPDATE", ["x"])]
    assert astray.rows == {"r1": {"x": 3, "y": 3}}


def test_a_client_that_pushes_continuously_is_sent_new_changes(history: History) -> None:
    gateway, (busy, other, _) = history.world.gateway, history.clients
    busy.take(busy.ask(gateway, 10))
    for row_id in ["r1", "r2", "r3", "r4", "r5"]:
        other.edit("INSERT", row_id, {"x": 1}, START)
    other.push(gateway)
    for turn in range(6):
        busy.take(busy.ask(gateway, 1))
        busy.edit("INSERT", f"own{turn}", {}, START + 1 + turn)
        busy.push(gateway)
    assert {"r1", "r2", "r3", "r4", "r5"} <= busy.rows.keys()
    busy.catch_up(gateway, 1)
    assert busy.rows.keys() == {"r1", "r2", "r3", "r4", "r5", *(f"own{turn}" for turn in range(6))}


def test_a_client_whose_first_pull_was_empty_is_sent_plain_inserts(history: History) -> None:
    early, writer, _ = history.clients
    early.take(early.ask(history.world.gateway, 10))
    writer.edit("INSERT", "r1", {"x": 1}, START)
    writer.push(history.world.gateway)
    assert [delta.op for delta in early.ask(history.world.gateway, 10).deltas] == ["INSERT"]


def test_a_client_that_asks_for_a_checkpoint_later_keeps_its_cursor(history_with_rules: History) -> None:
    gateway, (writer, _, reader) = history_with_rules.world.gateway, history_with_rules.clients
    reader.claims = {**reader.claims, "group": ["b"]}
    writer.edit("INSERT", "r1", {"group": "a"}, START)
    writer.push(gateway)
    history_with_rules._cut()
    page = reader.ask(gateway, 10)
    assert not page.deltas
    reader.cursor = page.server_hlc
    reader.claims = {**reader.claims, "group": ["a"]}
    with pytest.raises(NotFoundError, match="was seen before"):
        gateway.submit_checkpoint(reader.name, reader.claims).result()
    reader.catch_up(gateway, 10)
    assert reader.rows.keys() == {"r1"}


def test_a_push_after_a_lost_checkpoint_gets_a_higher_cursor_that_skips_nothing(history: History) -> None:
    gateway, (writer, _, reader) = history.world.gateway, history.clients
    writer.edit("INSERT", "r1", {"x": 1}, START)
    writer.push(gateway)
    history._cut()
    checkpoint = gateway.submit_checkpoint(reader.name, reader.claims).result()
    reader.edit("INSERT", "r2", {"x": 2}, START)
    reader.push(gateway)
    assert reader.cursor > checkpoint.arrival
    reader.catch_up(gateway, 10)
    assert reader.rows.keys() == {"r1", "r2"}


def test_an_erased_client_is_not_sent_ids_that_only_its_claims_after_the_erasure_could_see(
    history_with_rules: History,
) -> None:
    gateway, (writer, _, reader) = history_with_rules.world.gateway, history_with_rules.clients
    writer.edit("INSERT", "r1", {"group": "a"}, START)
    writer.push(gateway)
    reader.catch_up(gateway, 10)
    history_with_rules._erase_client(reader.name)
    reader.ask(gateway, 10)  # the page is lost
    reader.claims = {**reader.claims, "group": ["b"]}
    reader.ask(gateway, 10)
    writer.edit("INSERT", "r2", {"group": "a"}, START + 1)
    writer.push(gateway)
    reader.catch_up(gateway, 10)
    assert "r2" not in reader.sent_ids


def test_an_erased_client_that_starts_again_is_not_sent_deletes_of_rows_from_before_its_claims(
    history_with_rules: History,
) -> None:
    gateway, (writer, _, reader) = history_with_rules.world.gateway, history_with_rules.clients
    writer.edit("INSERT", "r1", {"group": "a"}, START)
    writer.edit("INSERT", "r2", {"group": "a"}, START)
    writer.push(gateway)
    reader.claims = {**reader.claims, "group": ["b"]}
    reader.catch_up(gateway, 10)
    writer.edit("UPDATE", "r1", {"group": "c"}, START + 1)
    writer.push(gateway)
    history_with_rules._erase_client(reader.name)
    reader.claims = {**reader.claims, "group": ["a"]}
    page = gateway.submit_pull(SyncPull(reader.name, 0, 10), reader.claims, knows_resync=True).result().decoded()
    assert [(delta.op, delta.row_id) for delta in page.deltas][-1:] == [("INSERT", "r2")]
    assert {delta.row_id for delta in page.deltas} == {"r2"}
