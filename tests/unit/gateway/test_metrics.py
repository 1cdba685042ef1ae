"""The metrics that need no server: those of the pipeline's report, and of work for destination tables."""

from __future__ import annotations

import msgspec
import pytest

from gateway.metrics import Metrics
from lakesync.analysis.lags import Lag
from lakesync.analysis.marks import REPORT, QueuedRun, Report


@pytest.fixture
def marks():
    return {}


@pytest.fixture
def metrics(marks):
    return Metrics(list, lambda: marks, 1)


def test_the_pipelines_report_is_shown(metrics, marks):
    lag = Lag("table", "todos", "shop", mark=5, deltas=7, since_ms=1_500)
    report = Report(3_500, lags=(lag,), requests={lag.key: 2}, queued=(QueuedRun("r", "flush", 0),))
    assert b"\nlakesync_pipeline_report_timestamp_seconds " not in metrics.text()
    marks[REPORT] = msgspec.json.encode(report).decode()
    shown = metrics.text().decode().splitlines()
    part = '{gateway="shop",name="todos",part="table"}'
    assert {line for line in shown if line.startswith("lakesync_pipeline_")} == {
        "lakesync_pipeline_report_timestamp_seconds 3.5",
        "lakesync_pipeline_queued_runs 1.0",
        f"lakesync_pipeline_behind_deltas{part} 7.0",
        f"lakesync_pipeline_behind_timestamp_seconds{part} 1.5",
        f"lakesync_pipeline_behind_requests{part} 2.0",
    }


def test_failed_work_for_a_destination_table_is_counted_by_table(metrics):
    for table in ("todos", "todos", "notes"):
        metrics.count_table_failure(table)
    shown = metrics.text().decode()
    assert 'lakesync_materialisation_failures_total{table="todos"} 2.0' in shown
    assert 'lakesync_materialisation_failures_total{table="notes"} 1.0' in shown
