"""What a destination adds up while a run writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lakehouse.backends.comparison import DigestTask
from lakehouse.backends.destinations import Follower
from lakesync.adapters.backend_config import WriteTarget
from lakesync.adapters.transfer.follower import DeltaSelection, follow_history
from tests.conformance.told_history import history, pushes

PUSHES = pushes(12)


class Busy(Follower, frozen=True):
    """A destination that takes a push whenever it is asked what it holds, as long as there are some."""

    left: Iterator[int] = iter(())

    def open(self):
        adapter: Any = super().open()
        digests = adapter.digests

        def moving(scope):
            found = digests(scope)
            for end in self.left:
                list(follow_history(adapter, self.name, self.selection, history(PUSHES[:end])))
                break
            return found

        adapter.digests = moving
        return adapter


@pytest.mark.parametrize(("moves", "is_consistent"), [(0, True), (4, True), (12, False)])
def test_figures_of_a_destination_that_changed_during_the_comparison_are_discarded(tmp_path, moves, is_consistent):
    leaf = WriteTarget("copy", f"sqlite://{tmp_path / 'copy.db'}")
    follower = Busy("destinations/shop/copy", leaf, DeltaSelection(), left=iter(range(1, moves + 1)))
    (found,) = DigestTask(follower).run()
    assert found.is_consistent == is_consistent
    if is_consistent:
        assert sum(digest.deltas for digest in found.digests) == found.progress.deltas == 3 * moves
