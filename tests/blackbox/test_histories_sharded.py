"""As `test_histories`, against a gateway in three shards."""

from __future__ import annotations

from tests.blackbox.run import found_wrong


def test_random_histories_over_shards_end_with_the_right_rows(over_shards):
    assert not found_wrong(over_shards, range(500, 560))
