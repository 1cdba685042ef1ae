"""Blocking calls of a store."""

from __future__ import annotations

from tests.conformance.book import id_sum, make_delta


def push(store, book, *deltas, gateway="g"):
    """Push, and wait for the result."""
    return store.submit(gateway, book.push(deltas)).result()


def read(store, work, gateway="g"):
    """Read, and wait for the result."""
    return store.read(gateway, work).result()


def many(client, count, *, start=1, width=1):
    """Pushes of `width` deltas each."""
    return [[make_delta(client, (start + i) * 100 + j, f"r{i}-{j}", x=i) for j in range(width)] for i in range(count)]


def flush(store, deltas, max_deltas=10_000):
    """Plan a batch and confirm it."""
    batch = store.plan("g", "main", max_deltas)
    store.confirm(batch.batch_id, len(deltas), id_sum(deltas))
    return batch
