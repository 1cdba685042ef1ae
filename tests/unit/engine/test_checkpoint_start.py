"""A checkpoint that a new client cannot start from is rejected with the reason."""

from types import SimpleNamespace

import pytest

from lakesync.engine.checkpoint_start import start_from
from lakesync.model.errors import NotFoundError
from lakesync.staging.records import Checkpoint

EPOCH, VERSION = 7, 3


@pytest.mark.parametrize(
    ("epoch", "version", "reindexing", "reason"),
    [
        (EPOCH - 1, VERSION, False, "the store was rebuilt after the newest checkpoint"),
        (EPOCH, VERSION - 1, False, "the rules are newer than the newest checkpoint"),
        (EPOCH, VERSION, True, "rows are still being assigned to the buckets of the active rules"),
    ],
)
def test_the_reason_for_refusing_a_checkpoint_is_named(epoch, version, reindexing, reason):
    checkpoint = Checkpoint("shop", epoch, 100, version, (), 0)
    rules = SimpleNamespace(access=lambda *_: None, is_reindexed=lambda _: not reindexing)
    commit = SimpleNamespace(epoch=EPOCH, config=SimpleNamespace(rules_version=VERSION))
    with pytest.raises(NotFoundError, match=reason):
        start_from(commit, checkpoint, "ann", {}, rules, 0)
