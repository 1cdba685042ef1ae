"""What a page makes of rows that have edits, and of rows that have none."""

import pytest

from lakesync.client.core import Broadcast, Wait
from lakesync.model.types import PushResult, SyncPull
from tests.unit.client.core_support import Handle, delta, page

LATER = 60_000
"""After every edit of a test, in milliseconds."""


def edited(row, after, start=(("INSERT", -10),)):
    """A client with row `r1` as given, and one edit of it that cannot be pushed yet."""
    me = Handle().greeted(1000, *[delta(op, "r1", at, **row) for op, at in start])
    me.edit("r1", row, after)
    return me.push_later()


def test_an_edit_of_one_column_survives_a_change_of_another():
    me = edited({"x": 1, "y": 1}, {"x": 2})
    me.pull_ok(2000, delta("UPDATE", "r1", LATER, y=5))
    assert me.row("r1") == {"x": 2, "y": 5}


@pytest.mark.parametrize(("at", "seen"), [(-1, "mine"), (LATER, "theirs")])
def test_the_newer_stamp_wins_on_the_same_column(at, seen):
    me = edited({"x": "old"}, {"x": "mine"})
    me.pull_ok(2000, delta("UPDATE", "r1", at, x="theirs"))
    assert me.row("r1") == {"x": seen}


@pytest.mark.parametrize(("at", "seen"), [(-1, {"x": 2}), (LATER, None)])
def test_a_deleted_row_is_gone_unless_the_edit_is_newer(at, seen):
    me = edited({"x": 1, "y": 1}, {"x": 2})
    me.pull_ok(2000, delta("DELETE", "r1", at))
    assert me.row("r1") == seen
    assert len(me.core.edits()) == 1


def test_a_row_that_moved_out_goes_whatever_its_stamps():
    me = Handle().greeted(1000, delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 50, y=1))
    me.pull_ok(2000, delta("DELETE", "r1", -10))
    assert me.row("r1") is None
    assert me.store.known({("t", "r1")}) == {}


def test_a_row_sent_anew_is_what_was_sent():
    me = Handle().greeted(1000, delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 50, y=1))
    me.pull_ok(2000, delta("DELETE", "r1", -10), delta("INSERT", "r1", -10, z=1))
    assert me.row("r1") == {"z": 1}


def test_a_row_sent_anew_keeps_an_edit_older_than_its_delete():
    me = edited({"x": 1}, {"y": 2})
    me.pull_ok(2000, delta("DELETE", "r1", LATER), delta("INSERT", "r1", LATER, x=3))
    assert me.row("r1") == {"x": 3, "y": 2}


def test_a_delete_of_the_user_gives_way_to_newer_columns_alone():
    me = edited({"x": 1, "y": 1}, None)
    assert me.row("r1") is None
    me.pull_ok(2000, delta("UPDATE", "r1", -5, y=2))
    assert me.row("r1") is None
    me.pull_ok(3000, delta("UPDATE", "r1", LATER, y=3))
    assert me.row("r1") == {"y": 3}


def test_a_page_that_comes_twice_changes_nothing():
    me = Handle().greeted()
    rows = delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 5, y=1)
    assert me.pull_ok(2000, *rows).rows
    changes = me.pull_ok(3000, *rows)
    assert (changes.rows, changes.known) == ({}, {})


def test_an_empty_page_moves_the_cursor():
    me = Handle().greeted(1000)
    me.pull_ok(2000)
    assert me.restarted().core.cursor == 2000


def test_an_idle_pull_writes_nothing():
    me = Handle().greeted(1000)
    assert me.pull_ok(1000).position is None


class TestBroadcasts:
    def live(self):
        me = Handle()
        me.core.connected()
        return me.greeted(1000, delta("INSERT", "r1", -10, x=1))

    def test_one_is_applied_and_moves_the_cursor(self):
        me = self.live()
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert (me.row("r1"), me.core.cursor, me.core.next_request()) == ({"x": 2}, 2000, Wait(None))

    def test_before_the_first_pull_on_a_connection_it_is_a_hint_to_pull(self):
        me = self.live()
        me.core.disconnected()
        me.core.connected()
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert me.row("r1") == {"x": 1}
        assert me.core.next_request() == SyncPull("me", 1000, 1000)

    def test_an_old_one_changes_nothing(self):
        me = self.live()
        me.core.receive(Broadcast(page(1000, delta("UPDATE", "r1", 5, x=2))))
        assert (me.row("r1"), me.core.next_request()) == ({"x": 1}, Wait(None))

    def test_one_that_may_be_older_than_a_push_is_a_hint_to_pull(self):
        me = self.live()
        me.edit("r1", {"x": 1}, {"y": 1})
        me.core.next_request()
        me.core.receive(PushResult(1500, 1))
        assert me.core.cursor == 1000, "a broadcast may still be on its way"
        again = delta("DELETE", "r1", -10), delta("INSERT", "r1", -10, x=1)
        me.core.receive(Broadcast(page(1400, *again)))
        assert (me.row("r1"), me.core.cursor) == ({"x": 1, "y": 1}, 1000)
        me.core.receive(Broadcast(page(1600, delta("INSERT", "r2", 0, x=1))))
        assert me.core.cursor == 1000, "what was left out is before this one"
        assert me.core.next_request() == SyncPull("me", 1000, 1000)

    def test_one_that_is_not_whole_asks_for_the_rest(self):
        me = self.live()
        me.core.receive(Broadcast(page(2001, delta("UPDATE", "r1", 5, x=2), more=True)))
        assert me.core.next_request() == SyncPull("me", 2001, 1000)

    def test_a_closed_connection_loses_what_was_under_way(self):
        me = self.live()
        me.edit("r1", {"x": 1}, {"x": 2})
        me.core.next_request()
        me.core.disconnected()
        assert [edit.status for edit in me.core.edits()] == ["sent"]
        assert me.core.next_request() == Wait(1.0)

    def test_a_client_that_only_pushes_takes_none(self):
        me = self.live()
        me.core.mode = "pushOnly"
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert me.row("r1") == {"x": 1}
