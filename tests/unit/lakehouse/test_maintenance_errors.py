"""Errors of Iceberg's procedures, as maintenance raises them."""

from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from lakehouse.maintenance import apply_deletes
from lakehouse.table_definitions import LakeNames
from lakesync.model.errors import CommitConflictError, FlushError

NAMES = LakeNames("lake", "sys", "tab")


def test_a_rejected_commit_of_maintenance_is_a_conflict_and_no_failed_flush():
    rejected = PySparkException("org.apache.iceberg.exceptions.ValidationException: missing data files")
    spark = Mock(**{"sql.side_effect": rejected})
    with pytest.raises(CommitConflictError, match="another run wrote the table meanwhile") as raised:
        apply_deletes(spark, NAMES, "`lake`.`tab`.`t`")
    assert not isinstance(raised.value, FlushError)
    assert raised.value.code == "COMMIT_CONFLICT"
