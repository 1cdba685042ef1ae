"""The division of the history into a follower's transactions."""

from itertools import pairwise

import pyarrow as pa
import pytest

from lakesync.adapters.transfer import follower
from lakesync.adapters.transfer.follower import split_chunks

PUSH = 3
"""Deltas of a push."""


def history(count, size, batch):
    arrivals = [number // PUSH for number in range(count)]
    return pa.table({"arrival": arrivals, "columns": ["x" * size] * count}).to_batches(batch)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_chunk_of_wide_deltas_ends_at_the_first_whole_push_after_its_bytes(batch, monkeypatch):
    monkeypatch.setattr(follower, "TRANSACTION_BYTES", 100_000)
    chunks = list(split_chunks(history(300, 10_000, batch), ("arrival",), 25_000))
    assert pa.concat_tables(chunks)["arrival"].to_pylist() == [number // PUSH for number in range(300)]
    ends = [(chunk["arrival"][0].as_py(), chunk["arrival"][-1].as_py()) for chunk in chunks]
    assert all(before[1] < after[0] for before, after in pairwise(ends)), "no push is divided"
    assert max(chunk.nbytes for chunk in chunks) < 150_000


def test_narrow_deltas_are_divided_by_their_number():
    assert [len(chunk) for chunk in split_chunks(history(20, 1, 4), ("arrival",), 5)] == [6, 6, 6, 2]
