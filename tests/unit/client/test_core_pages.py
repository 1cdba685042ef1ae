"""Pages applied to rows with and without edits."""

from unittest.mock import Mock

import pytest

from lakesync.client.core import Broadcast, FetchCheckpoint, Wait
from lakesync.model.types import PushResult, SyncPull
from tests.unit.client.core_support import CoreHarness, delta, page

LATER = 60_000
"""Later than every edit of a test, in milliseconds after START."""


def edited(row, after, start=(("INSERT", -10),)):
    """A client with row `r1` as given, and one edit of it that cannot be pushed yet."""
    me = CoreHarness().after_first_pull(1000, *[delta(op, "r1", at, **row) for op, at in start])
    me.edit("r1", row, after)
    return me.push_overloaded()


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
def test_a_row_deleted_by_others_disappears_unless_an_edit_is_newer(at, seen):
    me = edited({"x": 1, "y": 1}, {"x": 2})
    me.pull_ok(2000, delta("DELETE", "r1", at))
    assert me.row("r1") == seen
    assert len(me.core.edits()) == 1


def test_a_delete_from_the_gateway_removes_the_row_regardless_of_stamps():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 50, y=1))
    me.pull_ok(2000, delta("DELETE", "r1", -10))
    assert me.row("r1") is None
    assert me.store.known({("t", "r1")}) == {}


def test_a_row_inserted_after_a_delete_has_only_the_inserted_columns():
    me = CoreHarness().after_first_pull(1000, delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 50, y=1))
    me.pull_ok(2000, delta("DELETE", "r1", -10), delta("INSERT", "r1", -10, z=1))
    assert me.row("r1") == {"z": 1}


def test_an_edit_older_than_a_delete_counts_again_after_an_insert():
    me = edited({"x": 1}, {"y": 2})
    me.pull_ok(2000, delta("DELETE", "r1", LATER), delta("INSERT", "r1", LATER, x=3))
    assert me.row("r1") == {"x": 3, "y": 2}


def test_a_delete_by_the_app_is_overridden_only_by_newer_columns():
    me = edited({"x": 1, "y": 1}, None)
    assert me.row("r1") is None
    me.pull_ok(2000, delta("UPDATE", "r1", -5, y=2))
    assert me.row("r1") is None
    me.pull_ok(3000, delta("UPDATE", "r1", LATER, y=3))
    assert me.row("r1") == {"y": 3}


def test_a_repeated_page_changes_nothing():
    me = CoreHarness().after_first_pull()
    rows = delta("INSERT", "r1", -10, x=1), delta("UPDATE", "r1", 5, y=1)
    assert me.pull_ok(2000, *rows).rows
    changes = me.pull_ok(3000, *rows)
    assert (changes.rows, changes.known) == ({}, {})


def test_an_empty_page_advances_the_cursor():
    me = CoreHarness().after_first_pull(1000)
    me.pull_ok(2000)
    assert me.restarted().core.cursor == 2000


def test_an_idle_pull_writes_nothing():
    me = CoreHarness().after_first_pull(1000)
    assert me.pull_ok(1000).position is None


class TestBroadcasts:
    def live(self):
        me = CoreHarness()
        me.core.connection_opened()
        return me.after_first_pull(1000, delta("INSERT", "r1", -10, x=1))

    def test_a_broadcast_is_applied_and_advances_the_cursor(self):
        me = self.live()
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert (me.row("r1"), me.core.cursor, me.core.next_request()) == ({"x": 2}, 2000, Wait(None))

    def test_a_broadcast_before_the_first_pull_on_a_connection_makes_a_pull_due(self):
        me = self.live()
        me.core.connection_closed()
        me.core.connection_opened()
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert me.row("r1") == {"x": 1}
        assert me.core.next_request() == SyncPull("me", 1000, 1000)

    def test_an_old_broadcast_changes_nothing(self):
        me = self.live()
        me.core.receive(Broadcast(page(1000, delta("UPDATE", "r1", 5, x=2))))
        assert (me.row("r1"), me.core.next_request()) == ({"x": 1}, Wait(None))

    def test_a_broadcast_that_may_be_older_than_a_push_makes_a_pull_due(self):
        me = self.live()
        me.edit("r1", {"x": 1}, {"y": 1})
        me.core.next_request()
        me.core.receive(PushResult(1500, 1))
        assert me.core.cursor == 1000, "a broadcast may still be in transit"
        again = delta("DELETE", "r1", -10), delta("INSERT", "r1", -10, x=1)
        me.core.receive(Broadcast(page(1400, *again)))
        assert (me.row("r1"), me.core.cursor) == ({"x": 1, "y": 1}, 1000)
        me.core.receive(Broadcast(page(1600, delta("INSERT", "r2", 0, x=1))))
        assert me.core.cursor == 1000, "the skipped changes are before this one"
        assert me.core.next_request() == SyncPull("me", 1000, 1000)

    def test_a_broadcast_with_more_makes_a_pull_due(self):
        me = self.live()
        me.core.receive(Broadcast(page(2001, delta("UPDATE", "r1", 5, x=2), more=True)))
        assert me.core.next_request() == SyncPull("me", 2001, 1000)

    def test_a_closed_connection_leaves_the_pending_request_unanswered(self):
        me = self.live()
        me.edit("r1", {"x": 1}, {"x": 2})
        me.core.next_request()
        me.core.connection_closed()
        assert [edit.status for edit in me.core.edits()] == ["sent"]
        assert me.core.next_request() == Wait(1.0)

    def test_a_request_stays_pending_when_a_broadcast_cannot_be_stored(self, monkeypatch):
        me = self.live()
        me.edit("r1", {"x": 1}, {"x": 2})
        push = me.core.next_request()
        with monkeypatch.context() as patch:
            patch.setattr(me.store, "commit", Mock(side_effect=OSError("the disk is full")))
            with pytest.raises(OSError, match="full"):
                me.core.receive(Broadcast(page(2000, delta("INSERT", "r2", 0, x=1))))
        assert me.core.has_pending_request
        me.core.receive(PushResult(2500, len(push.deltas)))
        assert (me.core.edits(), me.core.cursor) == ([], 1000)
        assert me.core.next_request() == SyncPull("me", 1000, 1000)

    @pytest.mark.parametrize("by_another_client", [False, True])
    def test_a_broadcast_does_not_end_a_full_pull_that_has_not_begun(self, by_another_client):
        """The other client of the file may have repaired a table, whose rows have to be pulled again."""
        me = self.live()
        (me.restarted() if by_another_client else me).core.resync()
        me.core.reload()
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert me.core.cursor == 0
        assert me.core.next_request() == FetchCheckpoint("me")

    def test_a_push_only_client_ignores_broadcasts(self):
        me = self.live()
        me.core.mode = "pushOnly"
        me.core.receive(Broadcast(page(2000, delta("UPDATE", "r1", 5, x=2))))
        assert me.row("r1") == {"x": 1}
