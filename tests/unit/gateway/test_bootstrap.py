"""The server's own flushes, from start to shutdown."""

from __future__ import annotations

from contextlib import closing

import pytest

from gateway.bootstrap import Backends
from gateway.metrics import Metrics
from lakesync import config
from lakesync.engine import Engine
from lakesync.engine.housekeeping import Housekeeping
from lakesync.model.errors import FlushError
from lakesync.staging import open_store


@pytest.mark.parametrize("error", [FlushError("the backend does not answer"), OverflowError("too large")])
def test_the_engine_is_closed_although_the_last_flush_fails(monkeypatch, tmp_path, error):
    calls = []

    def fail(_):
        calls.append("flush_all")
        raise error

    monkeypatch.setattr(Housekeeping, "flush_all", fail)
    settings = config.load({"data_dir": tmp_path, "flush": {"to_uri": f"file://{tmp_path / 'lake'}"}})
    with closing(Backends(settings)) as backends:
        engine = Engine(open_store("memory://", lambda: 1), lambda: 1, outlet=backends.outlet)
        backends.engine_starter(engine, Metrics(list, dict, 1))()
        backends.finish()
        engine.close()
    assert calls == ["flush_all"]
