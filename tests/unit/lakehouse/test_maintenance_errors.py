"""Errors of commits that Iceberg rejects."""

from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from lakehouse.maintenance import apply_deletes
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import writes
from lakesync.model.errors import CommitConflictError, FlushError

NAMES = LakeNames("lake", "sys", "tab")


def test_a_rejected_commit_of_maintenance_is_a_conflict_and_no_failed_flush():
    rejected = PySparkException("org.apache.iceberg.exceptions.ValidationException: missing data files")
    spark = Mock(**{"sql.side_effect": rejected})
    with pytest.raises(CommitConflictError, match="another run wrote the table meanwhile") as raised:
        apply_deletes(spark, NAMES, "`lake`.`tab`.`t`")
    assert not isinstance(raised.value, FlushError)
    assert raised.value.code == "COMMIT_CONFLICT"


def test_a_merge_that_others_always_prevent_is_a_conflict_and_no_failed_flush(monkeypatch):
    merge = Mock(side_effect=CommitConflictError("the branch was dropped"))
    monkeypatch.setattr(writes, "_read_state", Mock())
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    monkeypatch.setattr(writes, "_merge_on_read", merge)
    table = Mock(has_new_columns=False)
    with pytest.raises(CommitConflictError, match="during each of"):
        writes.write_state(Mock(), table, Mock(), Mock(), None)
    assert merge.call_count == writes.ATTEMPTS
