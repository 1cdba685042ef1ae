"""Tasks reach executors as values, and their errors come back with type and fields."""

import pytest

from lakehouse.backends.adapter_tasks import run_task
from lakehouse.backends.destinations import Follower, FollowTask
from lakehouse.backends.transfers import Flow, Migration, Tiering
from lakehouse.task_runner import raise_failure
from lakesync.adapters.backend_config import SingleBackend, TieredBackend, WriteTarget
from lakesync.adapters.transfer.flows import RowFilter
from lakesync.adapters.transfer.follower import DeltaSelection
from lakesync.adapters.transfer.migration import MigrationScope
from lakesync.model.errors import AdapterError, ConfigurationError
from lakesync.model.schema import parse_schema

SCHEMA = parse_schema({"table": "flights", "columns": [{"name": "delay", "type": "number"}]})


@pytest.fixture
def backend(tmp_path):
    return lambda name: SingleBackend(name, f"sqlite://{tmp_path}/{name}.db")


def run(work):
    """As an executor does it."""
    rows = [row for batch in run_task([work], 0) for row in batch.to_pylist()]
    raise_failure(row["failure"] for row in rows)
    return [row["report"] for row in rows]


def test_each_task_runs_from_its_serialised_value(backend, tmp_path):
    leaf = WriteTarget("a", backend("a").uri, cold=(TieredBackend(backend("h"), backend("c"), 5),))
    row_filter = RowFilter(where=(("delay", "gt", "3"),))
    assert run(Flow("f", backend("s"), leaf, row_filter, (SCHEMA,))) == []
    assert len(run(Tiering(backend("h"), backend("c"), -1, 5))) == 1
    assert len(run(Migration("m", backend("s"), backend("d"), MigrationScope(), 10, str(tmp_path)))) == 1
    follower = Follower("l", leaf, DeltaSelection(), (SCHEMA,))
    (report,) = run(FollowTask(follower, [], {}, {"g/main": 512}))
    assert '"g/main":512' in report


def test_errors_of_tasks_keep_their_class(backend, tmp_path):
    (tmp_path / "broken.db").write_text("this is no database of SQLite, however long one looks at it")
    with pytest.raises(AdapterError, match=r"broken\.db cannot be used"):
        run(Tiering(backend("broken"), backend("c"), -1, 5))
    with pytest.raises(ConfigurationError, match="no adapter has the scheme 'gopher'"):
        run(Tiering(SingleBackend("x", "gopher://hole"), backend("c"), -1, 5))
