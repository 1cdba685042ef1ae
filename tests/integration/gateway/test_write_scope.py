"""R8: with the write scopes `visible` and `rules` a client changes only rows that its sync rules show it."""

from __future__ import annotations

import pytest

from lakesync.engine import Engine, EngineLimits
from lakesync.model.delta import extract_delta
from lakesync.model.errors import ForbiddenError
from lakesync.model.types import SyncPull, SyncPush
from lakesync.rules.model import Bucket, Filter, SyncRules, user_scoped
from lakesync.staging import open_store
from lakesync.testing import ManualClock


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def engine(tmp_path, clock):
    opened = Engine(open_store(f"sqlite://{tmp_path}", clock), clock)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def gateway(engine):
    made = engine.gateway("g")
    made.set_rules(user_scoped("owner"))
    made.set_write_scope("rules")
    return made


class Writer:
    """A client that pushes with increasing times."""

    def __init__(self, gateway, clock, name, **claims):
        self.gateway, self.clock, self.name, self.claims = gateway, clock, name, {"sub": name, **claims}

    def delta(self, row, after, before=None):
        hlc = self.clock.advance(1) << 16
        return extract_delta(before, after, table="notes", row_id=row, client_id=self.name, hlc=hlc)

    def push(self, *deltas):
        return self.gateway.handle_push(SyncPush(self.name, deltas), self.claims)

    def write(self, row, after, before=None):
        return self.push(self.delta(row, after, before))


@pytest.fixture
def client(gateway, clock):
    return lambda name, **claims: Writer(gateway, clock, name, **claims)


def refused(push, *args):
    with pytest.raises(ForbiddenError) as error:
        push(*args)
    return error.value


def contents(gateway, *rows):
    """The stored values of rows."""
    stored = gateway._store.read(gateway.gateway_id, lambda view: view.rows([("notes", row) for row in rows])).result()
    return {
        row_id: {name: bytes(raw) for name, raw in row.state.values().items()} for (_, row_id), row in stored.items()
    }


def test_a_write_is_rejected_if_the_row_is_hidden_before_or_after_it(gateway, client):
    alice, bob = client("alice"), client("bob")
    alice.write("a", {"owner": "alice", "text": "mine"})
    before = contents(gateway, "a")
    for attempt in (
        bob.delta("a", {"text": "stolen"}, {"text": ""}),
        bob.delta("a", {"owner": "bob"}, {"owner": "x"}),
        bob.delta("a", None, {}),
        bob.delta("a", {"owner": "bob", "text": "mine now"}),
    ):
        error = refused(bob.push, attempt)
        assert [(each.delta_id, each.code) for each in error.rejected] == [(attempt.delta_id, "FORBIDDEN")]
    given_away = refused(alice.write, "a", {"owner": "bob"}, {"owner": "alice"})
    assert len(given_away.rejected) == 1
    assert contents(gateway, "a") == before


def test_the_error_does_not_depend_on_whether_the_row_exists(client):
    alice, bob = client("alice"), client("bob")
    alice.write("there", {"owner": "alice"})
    there = refused(bob.write, "there", {"owner": "alice"}, {"owner": "x"})
    absent = refused(bob.write, "absent", {"owner": "alice"}, {"owner": "x"})
    assert str(there) == str(absent)
    assert there.rejected[0].message == absent.rejected[0].message
    assert "there" not in str(there)


def test_the_error_names_a_table_that_no_bucket_contains(gateway, client):
    bob = client("bob")
    gateway.set_rules(SyncRules(1, (Bucket("mine", ("todos",), (Filter("owner", "eq", "jwt:sub"),)),)))
    error = refused(bob.write, "b", {"owner": "bob"})
    assert "no bucket of the sync rules contains table 'notes'" in str(error)
    assert error.rejected[0].message in str(error)


def test_only_deltas_outside_the_scope_are_listed_and_the_others_can_be_pushed_again(gateway, client):
    bob = client("bob")
    good, bad = bob.delta("b", {"owner": "bob"}), bob.delta("x", {"owner": "alice"})
    late = bob.delta("x", {"text": "more"}, {"text": ""})
    error = refused(bob.push, good, bad, late)
    assert [each.delta_id for each in error.rejected] == [bad.delta_id, late.delta_id]
    assert contents(gateway, "b", "x") == {}
    assert bob.push(good).accepted == 1


def test_own_rows_can_be_inserted_updated_and_deleted(gateway, client):
    bob = client("bob")
    bob.write("b", {"owner": "bob", "text": "1"})
    bob.write("b", {"text": "2"}, {"text": "1"})
    bob.write("b", None, {})
    bob.write("b", {"owner": "bob", "text": "3"})
    assert contents(gateway, "b") == {"b": {"owner": b'"bob"', "text": b'"3"'}}


def test_a_row_may_leave_and_reenter_the_scope_in_one_push(gateway, client):
    bob = client("bob")
    bob.push(bob.delta("b", {"owner": "alice"}), bob.delta("b", {"owner": "bob"}, {"owner": "alice"}))
    assert contents(gateway, "b") == {"b": {"owner": b'"bob"'}}
    error = refused(bob.push, bob.delta("c", {"owner": "bob"}), bob.delta("c", {"owner": "alice"}, {"owner": "bob"}))
    assert len(error.rejected) == 2


def test_a_repeated_delta_is_accepted_although_its_row_is_now_hidden(gateway, client):
    bob = client("bob")
    delta = bob.delta("b", {"owner": "bob"})
    bob.push(delta)
    gateway.set_rules(SyncRules(2, (Bucket("nobody", ("notes",), (Filter("owner", "eq", "nobody"),)),)))
    assert bob.push(delta).accepted == 1
    refused(bob.write, "b", {"owner": "nobody"}, {"owner": "bob"})


def test_a_row_with_a_new_bucket_key_is_in_scope(gateway, client):
    order = Filter("level", "lte", "jwt:level")
    gateway.set_rules(SyncRules(1, (Bucket("levels", ("notes",), (order,)),)))
    carl = client("carl", level="5")
    carl.write("low", {"level": 4})
    refused(carl.write, "high", {"level": 6})
    assert set(contents(gateway, "low", "high")) == {"low"}


def test_without_buckets_every_row_is_in_scope(gateway, client):
    gateway.set_rules(SyncRules(1, ()))
    client("bob").write("b", {"owner": "alice"})
    assert set(contents(gateway, "b")) == {"b"}


def test_a_write_scope_set_at_run_time_overrides_the_declared_one(tmp_path, clock):
    limits = EngineLimits(write_scope="rules")
    engine = Engine(open_store(f"sqlite://{tmp_path}", clock), clock, limits)
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.set_rules(user_scoped("owner"))
        bob = Writer(gateway, clock, "bob")
        refused(bob.write, "a", {"owner": "alice"})
        gateway.set_write_scope("any")
        bob.write("a", {"owner": "alice"})
    finally:
        engine.close()


TEAMS = SyncRules(1, (Bucket("team", ("notes",), (Filter("team", "eq", "jwt:team"),)),))


@pytest.fixture
def teams(engine):
    """A gateway with rules, without a configured write scope."""
    made = engine.gateway("teams")
    made.set_rules(TEAMS)
    return made


def test_a_hidden_row_cannot_be_moved_into_sight(teams, clock):
    red, blue = Writer(teams, clock, "red", team="red"), Writer(teams, clock, "blue", team="blue")
    red.write("r", {"team": "red", "text": "secret"})
    before = contents(teams, "r")
    for attempt in (
        blue.delta("r", {"team": "blue"}, {"team": "x"}),
        blue.delta("r", {"team": "blue"}),
        blue.delta("r", {"text": "mine"}, {"text": ""}),
        blue.delta("r", None, {}),
    ):
        assert [each.delta_id for each in refused(blue.push, attempt).rejected] == [attempt.delta_id]
    assert contents(teams, "r") == before
    assert teams.handle_pull(SyncPull("blue", 0, 100), blue.claims).deltas == ()


def test_a_visible_row_can_be_moved_out_of_sight_and_a_hidden_one_be_inserted(teams, clock):
    red = Writer(teams, clock, "red", team="red")
    red.write("r", {"team": "red"})
    red.write("r", {"team": "blue"}, {"team": "red"})
    red.write("new", {"team": "blue"})
    assert contents(teams, "r", "new") == {"r": {"team": b'"blue"'}, "new": {"team": b'"blue"'}}
    refused(red.write, "r", {"team": "red"}, {"team": "blue"})
    refused(red.write, "new", None, {})


def test_with_scope_any_hidden_rows_can_be_moved_into_sight(teams, clock):
    teams.set_write_scope("any")
    red, blue = Writer(teams, clock, "red", team="red"), Writer(teams, clock, "blue", team="blue")
    red.write("r", {"team": "red", "text": "secret"})
    blue.write("r", {"team": "blue"}, {"team": "x"})
    assert {each.row_id for each in teams.handle_pull(SyncPull("blue", 0, 100), blue.claims).deltas} == {"r"}


@pytest.mark.parametrize("scope", ["visible", "rules"])
def test_a_missing_row_cannot_be_deleted_in_advance(teams, clock, scope):
    teams.set_write_scope(scope)
    red, blue = Writer(teams, clock, "red", team="red"), Writer(teams, clock, "blue", team="blue")
    ahead = (clock.advance(1) + 4000) << 16
    early = extract_delta({"x": 1}, None, table="notes", row_id="r", client_id="blue", hlc=ahead)
    written = extract_delta(None, {"team": "blue"}, table="notes", row_id="r", client_id="blue", hlc=ahead - 1)
    for attempt in ((early,), (written, early), (blue.delta("r", None, {}),)):
        assert len(refused(blue.push, *attempt).rejected) == len(attempt)
    red.write("r", {"team": "red"})
    assert contents(teams, "r") == {"r": {"team": b'"red"'}}


@pytest.mark.parametrize("scope", ["visible", "rules"])
def test_a_guessed_id_reveals_only_whether_it_exists(teams, clock, scope):
    """Like a unique key: an INSERT with a free id is stored, so a rejected one reveals that the id exists."""
    teams.set_write_scope(scope)
    red, blue = Writer(teams, clock, "red", team="red"), Writer(teams, clock, "blue", team="blue")
    red.write("taken", {"team": "red", "text": "secret"})
    red.write("other", {"team": "red", "size": 7})
    said = {
        str(refused(blue.push, blue.delta(row, after, before)))
        for row in ("taken", "other")
        for after, before in (({"team": "blue"}, None), ({"team": "blue"}, {"team": "x"}), (None, {}))
    }
    said.add(str(refused(blue.push, blue.delta("free", None, {}))))
    assert len(said) == 1
    assert blue.write("free", {"team": "blue"}).accepted == 1


def test_a_row_may_be_written_and_deleted_in_one_push(teams, clock):
    red = Writer(teams, clock, "red", team="red")
    assert red.push(red.delta("r", {"team": "red"}), red.delta("r", None, {})).accepted == 2


def test_connectors_are_exempt_from_the_scope(teams, clock):
    red, feed = Writer(teams, clock, "red", team="red"), Writer(teams, clock, "jira:crm")
    red.write("r", {"team": "red"})
    assert teams.handle_push(SyncPush("jira:crm", (feed.delta("r", {"team": "blue"}, {"team": "red"}),))).accepted == 1
