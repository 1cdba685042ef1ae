"""Merges of a state table beside other writers of it neither lose nor duplicate rows."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException

from lakehouse.checks import duplicate_keys
from lakehouse.erasure.redaction import reject_older_merges
from lakehouse.tables import writes
from lakehouse.tables.merging import forget_marks, merge_table
from tests.integration.gateway_support import until
from tests.integration.lakehouse.state_support import FIRST, delta, lake, merged, schema
from tests.lake_support import arrivals, fill

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


def test_a_concurrent_writer_loses_no_data(spark, names, monkeypatch):
    """Between read and commit, another run merges more and commits; its rows must remain."""
    pushes = [
        (arrival, [delta("INSERT", f"row-{number}", 10 + number, size=number)])
        for number, arrival in enumerate(arrivals(FIRST, 6))
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": pushes[0][0]}, names=names)
    interfered = []

    def other_run_first(work):
        def run(*arguments, **options):
            if not interfered:
                interfered.append(True)
                merge_table(spark, schema(), {"g": pushes[-1][0]}, names=names)
            return work(*arguments, **options)

        return run

    for small in (False, True):
        interfered.clear()
        forget_marks(spark, "t", names)
        with monkeypatch.context() as patch:
            patch.setattr(writes, "_suits_merge_on_read", lambda *_, small=small: small)
            patch.setattr(writes, "_observe", other_run_first(writes._observe))
            merge_table(spark, schema(), {"g": pushes[2][0]}, names=names)
        assert interfered
        assert lake(spark, names) == merged(pushes, "g")


def test_a_killed_merge_beside_another_deletes_no_rows(spark, names, monkeypatch):
    """Between the commits of a merge on read another run marks more rows as deleted and dies; they must remain."""
    first, second, third = arrivals(FIRST, 3)
    pushes = [
        (first, [delta("INSERT", f"row-{number}", 1, size=number) for number in range(4)]),
        (second, [delta("UPDATE", "row-0", 2, title="second")]),
        (third, [delta("UPDATE", f"row-{number}", 3, title="third") for number in range(4)]),
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": first}, names=names)
    spark.sql(f"ALTER TABLE {names.state('t')} CREATE TAG merged")  # the user's own
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    observe = writes._observe
    killed = []

    def die(*_):
        killed.append(True)
        raise KeyboardInterrupt

    def after_a_killed_merge(*arguments):
        if not killed:
            with monkeypatch.context() as patch:
                patch.setattr(writes, "_observe", die)
                with pytest.raises(KeyboardInterrupt):
                    merge_table(spark, schema(), {"g": third}, names=names)
        return observe(*arguments)

    monkeypatch.setattr(writes, "_observe", after_a_killed_merge)
    merge_table(spark, schema(), {"g": second}, names=names)
    assert killed
    assert lake(spark, names) == merged(pushes[:2], "g")
    assert not duplicate_keys(spark, "t", names)
    merge_table(spark, schema(), {"g": third}, names=names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main", "merged"}


def test_a_merge_whose_branch_is_dropped_duplicates_no_row(spark, names, monkeypatch, tmp_path):
    """An erasure drops all branches, perhaps while a merge on read appends the merged rows to its branch."""
    first, second = arrivals(FIRST, 2)
    pushes = [
        (first, [delta("INSERT", f"row-{number}", 1, size=number) for number in range(4)]),
        (second, [delta("UPDATE", "row-0", 2, title="second")]),
    ]
    fill(spark, names, pushes)
    merge_table(spark, schema(), {"g": first}, names=names)
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    observe = writes._observe
    reached, dropped = tmp_path / "reached", tmp_path / "dropped"

    def held(batches):
        from pathlib import Path

        yield from batches
        Path(str(reached)).touch()
        deadline = time.monotonic() + 60  # a task of Spark cannot import `until`
        while not Path(str(dropped)).exists():
            assert time.monotonic() < deadline, "the branches were not dropped"
            time.sleep(0.05)

    def observe_slowly(*arguments):
        rows = observe(*arguments)
        return rows if dropped.exists() else rows.mapInArrow(held, rows.schema)

    def drop_branches():
        until(reached.exists, "the merge to append to its branch")
        for row in spark.table(f"{names.state('t')}.refs").where("type = 'BRANCH' AND name <> 'main'").collect():
            spark.sql(f"ALTER TABLE {names.state('t')} DROP BRANCH `{row['name']}`")
        dropped.touch()

    monkeypatch.setattr(writes, "_observe", observe_slowly)
    with ThreadPoolExecutor(1) as erasure:
        done = erasure.submit(drop_branches)
        merge_table(spark, schema(), {"g": second}, names=names)
        done.result()
    assert not duplicate_keys(spark, "t", names)
    assert lake(spark, names) == merged(pushes, "g")
    assert {row["name"] for row in spark.table(f"{names.state('t')}.refs").collect()} == {"main"}


@pytest.mark.parametrize(("is_first_merge", "on_read"), [(True, False), (False, False), (False, True)])
def test_b7_a_merge_of_a_killed_run_that_ends_after_an_erasure_is_rejected(
    spark, names, monkeypatch, is_first_merge, on_read
):
    """The erasure has found no erased value in the table, so it has written nothing there."""
    first, second = arrivals(FIRST, 2)
    pushes = [(first, [delta("INSERT", "r", 1, size=1)]), (second, [delta("INSERT", "erased", 2, title="secret")])]
    fill(spark, names, pushes)
    if not is_first_merge:
        merge_table(spark, schema(), {"g": first}, names=names)
    monkeypatch.setattr(writes, "ATTEMPTS", 1)  # a killed run does not try again
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: on_read)
    observe = writes._observe

    def erased_meanwhile(*arguments):
        reject_older_merges(spark, names.state("t"), names)
        return observe(*arguments)

    monkeypatch.setattr(writes, "_observe", erased_meanwhile)
    with pytest.raises(PySparkException, match=r"Cannot|not an ancestor"):
        merge_table(spark, schema(), {"g": second}, names=names)
    monkeypatch.undo()
    assert lake(spark, names) == ({} if is_first_merge else merged(pushes[:1], "g"))
    merge_table(spark, schema(), {"g": second}, names=names)
    assert lake(spark, names) == merged(pushes, "g")
