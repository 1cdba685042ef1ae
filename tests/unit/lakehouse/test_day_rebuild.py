"""The days of a destination that are rewritten concurrently."""

from datetime import date

import pytest

from lakehouse.backends.day_rebuild import RebuildTask, concurrent_tasks

BATCHES = ({"a"}, {"a", "b"}, {"b"}, {"c"}, set())
"""Ids of the batches of five days. Batches `a` and `b` each have deltas of two days."""


@pytest.mark.parametrize(
    ("writers", "groups"), [(1, [[1], [2], [3], [4], [5]]), (2, [[1, 3], [2, 4], [5]]), (16, [[1, 3, 4, 5], [2]])]
)
def test_days_with_a_common_batch_are_rewritten_one_after_another(writers, groups):
    tasks = [
        RebuildTask(None, (), {}, {}, frozenset(batches), date(2026, 3, number))
        for number, batches in enumerate(BATCHES, 1)
    ]
    found = concurrent_tasks(tasks, writers)
    assert [[task.day.day for task in group] for group in found] == groups
