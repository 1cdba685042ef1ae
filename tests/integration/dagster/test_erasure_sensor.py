"""The erasure sensor asks for one run while requests are open, over a real store and a real Dagster instance."""

from contextlib import nullcontext

import dagster as dg
import pytest

from assets.names import REQUESTED_BY
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import report_in
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from sensors import backoff as attempts
from sensors.lags import PipelineLags
from sensors.staging import ERASURE_SENSOR, erasure_sensor
from tests.integration.gateway_support import wall_ms


@pytest.fixture
def store(tmp_path):
    engine = Engine(open_store(f"sqlite://{tmp_path / 'staging'}", wall_ms), wall_ms)
    engine.open()
    delta = extract_delta(None, {"a": 1}, table="t", row_id="r", client_id="ann", hlc=wall_ms() << 16)
    engine.gateway("g").handle_push(SyncPush("ann", (delta,)))
    yield engine.store
    engine.close()


def test_the_sensor_requests_one_run_while_a_request_is_open(store, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    lags = PipelineLags(load({"data_dir": tmp_path}), SchemaSnapshot())
    sensor = erasure_sensor(lambda: nullcontext(store), lags)
    with dg.DagsterInstance.ephemeral() as instance:

        def reported():
            lags.read(store, lambda: instance, read_again=True)
            report = report_in(store.marks())
            return [
                (lag.part, lag.gateway, report.requests.get(lag.key, 0)) for lag in report.lags if lag.part != "deltas"
            ]

        def tick(cursor=None):
            with dg.build_sensor_context(instance, cursor=cursor) as context:
                return sensor(context)

        assert "nothing is to be erased" in tick().skip_message
        assert reported() == []
        erasure = store.erase_client("g", "ann")
        asked = tick()
        assert reported() == [("erasure", "g", 0)]  # `lakesync status` shows it
        (request,) = asked.run_requests
        assert request.tags == {REQUESTED_BY: ERASURE_SENSOR}
        run = dg.DagsterRun("erasure", status=dg.DagsterRunStatus.STARTED, tags=request.tags)
        instance.add_run(run)
        assert "under way" in tick().skip_message
        instance.report_run_failed(run)
        # a destination may be unreachable for long
        assert "erasure/g was requested once" in tick(asked.cursor).skip_message
        assert reported() == [("erasure", "g", 1)]
        monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 0)
        assert tick(asked.cursor).run_requests
        store.confirm_erasure("g", erasure.seq)
        assert "nothing is to be erased" in tick().skip_message
        assert reported() == []
