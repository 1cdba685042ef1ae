"""Errors of Spark are mapped to those of LakeSync, with a message that names the cause."""

import pytest
from pyspark.errors import IllegalArgumentException

from lakehouse.spark_errors import lake_errors
from lakesync.model.errors import LakeUnavailableError


@pytest.mark.parametrize(
    "message",
    [
        "[BUG] Expected sorted snapshot log entries.",
        "Invalid update timestamp 1795950768144: before last snapshot log entry at 1795961568144",
    ],
)
def test_a_commit_that_iceberg_rejects_after_the_clock_was_set_back_names_the_cause(message):
    @lake_errors
    def merge():
        raise IllegalArgumentException(message)

    with pytest.raises(LakeUnavailableError, match=r"merge was not committed .* The clock was set back: .* or wait"):
        merge()
