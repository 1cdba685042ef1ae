"""The transfers of `scripts/move-storm` work without kills, so the script cannot break unnoticed."""

import pytest

from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from tests.conformance.book import make_delta
from tests.move_storm.moves import MOVES, held, judged


@pytest.mark.parametrize("target", ["sqlite", "file"])
@pytest.mark.parametrize("move", MOVES)
def test_each_transfer_of_the_storm_copies_every_delta(tmp_path, move, target):
    source, ending = tmp_path / "source.db", ".db" if target == "sqlite" else ""
    adapter = SqliteAdapter(source)
    deltas = [StoredDelta("g", 256 * n, make_delta("c", n, f"r{n % 5}", size=n)) for n in range(1, 31)]
    adapter.insert_deltas(DeltaBatch("g.1", "g", tuple(deltas)))
    adapter.close()
    before = held(f"sqlite://{source}")
    copied = MOVES[move](f"sqlite://{source}", f"{target}://{tmp_path}/target{ending}", 10)
    verdict = judged(move, "", f"sqlite://{source}", f"{target}://{tmp_path}/target{ending}", before, copied)
    assert (copied, verdict.lost, verdict.doubled, verdict.touched) == (30, 0, 0, 0)
