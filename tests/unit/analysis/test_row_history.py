"""The history of a row includes unflushed deltas, even before the lake exists."""

from __future__ import annotations

import pytest

from lakesync import config
from lakesync.analysis.row_history import row_history
from lakesync.engine import Engine
from lakesync.model.errors import LakeUnavailableError
from lakesync.model.types import SyncPush
from lakesync.staging import open_staging
from lakesync.testing import ManualClock
from tests.conformance.book import make_delta


def test_the_history_includes_unflushed_deltas_before_the_first_flush(tmp_path):
    place, clock = config.load({"data_dir": tmp_path}), ManualClock()
    engine = Engine(open_staging(place.staging.url, None, clock), clock)
    engine.open()
    first, second = (make_delta("ann", (clock.now_ms << 16) + n, "r1", x=n) for n in (1, 2))
    engine.gateway("shop").handle_push(SyncPush("ann", (second, first)))
    engine.close()
    result = row_history(place, "notes", "r1")
    assert {each.delta_id: each.columns[0].outcome for each in result} == {
        first.delta_id: "lost",
        second.delta_id: "live",
    }
    assert not any(each.flushed for each in result)
    with pytest.raises(LakeUnavailableError, match="no Iceberg catalogue"):
        row_history(place, "notes", "r2")
