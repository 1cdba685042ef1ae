"""Conditions and sums over more columns, erasures and gateways than protobuf messages may be nested."""

import pytest

from lakehouse.erasure.redaction import erase_state_table
from lakehouse.spark_query import _after_marks
from lakehouse.tables.audit import days_unlike_history
from lakehouse.tables.merging import merge_table
from lakesync.analysis.expression_trees import combine
from lakesync.model.schema import parse_schema
from lakesync.staging.records import Erasure
from tests.integration.lakehouse.state_support import DAYS, delta
from tests.lake_support import arrivals, fill

MANY = 80
"""Columns, erasures and gateways. Conditions over 50 of them in a chain are nested too deeply."""
UNITED = 600
"""Tables in a union. A chain of 300 is accepted, one of 600 is nested too deeply."""

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


def test_plans_of_many_columns_erasures_and_gateways_are_accepted(spark, names):
    schema = parse_schema({"table": "t", "columns": [{"name": f"c{n}", "type": "number"} for n in range(MANY)]})
    values = {f"c{n}": n for n in range(MANY)}
    (arrival,) = arrivals(DAYS[0], 1)
    fill(spark, names, [(arrival, [delta("INSERT", f"r{n}", arrival + n, **values) for n in range(2)])])
    merge_table(spark, schema, {"g": arrival}, names=names)
    assert days_unlike_history(spark, "t", names) == []

    requests = [Erasure("g", n, "t", f"r{n}", None, hlc=arrival, arrival=arrival, requested_ms=0) for n in range(MANY)]
    report = erase_state_table(spark, "t", requests, names)
    assert report is not None
    assert report.rows == 1

    history = spark.table(names.deltas)
    assert history.where(_after_marks(dict.fromkeys([f"g{n}" for n in range(MANY)], 0))).count() == 2
    assert history.where(_after_marks({"g": arrival, **{f"g{n}": 0 for n in range(MANY)}})).count() == 0
    rows = [spark.range(0, 2, 1, 1)] * UNITED
    assert combine(lambda first, second: first.unionAll(second), rows).count() == 2 * UNITED
