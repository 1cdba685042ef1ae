"""`/ready` names the problem: starting, draining, store, disk, behind."""

from __future__ import annotations

import threading

import pytest
import requests

from gateway.routes import monitoring
from gateway.server import GatewayServer, create_app, listen
from gateway.settings import GatewaySettings
from lakesync.engine import Engine, EngineLimits
from lakesync.staging import open_store
from lakesync.staging.shards import ShardMap
from tests.integration.gateway_support import DEADLINE, SECRET, Client, delta, until, wall_ms


def ready(url: str) -> tuple[int, str]:
    answer = requests.get(url + "/ready", timeout=DEADLINE)
    if answer.status_code == 503:
        assert answer.json()["code"] == "STAGING_UNAVAILABLE"
        assert int(answer.headers["retry-after"]) > 0
    return answer.status_code, answer.json().get("error", "").partition(":")[0]


def test_a_starting_gateway_answers_health_checks_and_rejects_work(tmp_path):
    gate = threading.Event()
    engine = Engine(open_store(f"sqlite://{tmp_path}", wall_ms), wall_ms)

    def open_slowly() -> None:
        assert gate.wait(DEADLINE)
        engine.open()

    settings = GatewaySettings(secrets=(SECRET,), staging_folders=(tmp_path,))
    with listen("127.0.0.1", 0) as bound:
        server = GatewayServer(create_app(settings, engine), settings, open_slowly)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        client = Client(url, "gw")
        for path in ("/health", "/metrics"):
            assert requests.get(url + path, timeout=DEADLINE).status_code == 200
        assert ready(url) == (503, "starting")
        refused = client.push(delta("t1", {"n": 1}))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.headers["connection"] == "close"
        gate.set()
        until(lambda: ready(url) == (200, ""), "the start")
        assert client.push(delta("t1", {"n": 1})).status_code == 200
        server.should_exit = True
        thread.join(DEADLINE)
        engine.close()


def test_a_server_whose_store_cannot_be_opened_exits(spawn, tmp_path):
    (tmp_path / "file").write_text("no folder")
    process = spawn(ready=False, LAKESYNC_STAGING_URL=f"sqlite://{tmp_path}/file")
    assert process.process.returncode == 1
    assert process.lines()[-1]["code"] == "STAGING_UNAVAILABLE"


def test_a_store_that_does_not_answer_is_reported(serve, monkeypatch):
    monkeypatch.setattr(monitoring, "STORE_TIMEOUT_SECONDS", 0.2)
    served = serve()
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    held = threading.Event()
    served.engine.store.submit(client.gateway, lambda _: held.wait(DEADLINE))
    try:
        assert ready(served.url) == (503, "store")
    finally:
        held.set()
    until(lambda: ready(served.url) == (200, ""), "the store")


def test_readiness_fails_while_the_store_is_unreachable(serve):
    served = serve()
    assert ready(served.url) == (200, "")
    served.engine.close()
    assert ready(served.url) == (503, "store")


def test_counters_are_served_while_the_store_is_unreachable(serve):
    served = serve()
    assert served.client().push(delta("t1", {"n": 1})).status_code == 200
    assert "lakesync_unflushed_deltas{" in requests.get(served.url + "/metrics", timeout=DEADLINE).text
    served.engine.close()
    assert served.client().push(delta("t1", {"n": 2})).status_code == 503
    answer = requests.get(served.url + "/metrics", timeout=DEADLINE)
    assert answer.status_code == 200
    assert 'lakesync_errors_total{code="STAGING_UNAVAILABLE"} 1.0' in answer.text
    assert "lakesync_unflushed_deltas{" not in answer.text


def test_a_full_or_missing_disk_is_reported(serve, tmp_path):
    assert ready(serve(staging_folders=(tmp_path,), http_limits={"min_free_disk_bytes": 1 << 60}).url) == (503, "disk")
    gone = serve(staging_folders=(tmp_path, tmp_path / "gone"))
    assert ready(gone.url) == (503, "disk")
    assert str(tmp_path) not in requests.get(gone.url + "/ready", timeout=DEADLINE).text
    assert ready(serve(staging_folders=(tmp_path,), http_limits={"min_free_disk_bytes": 0}).url) == (200, "")


def test_a_server_that_accepts_no_push_is_behind(serve):
    served = serve(limits=EngineLimits(max_backpressure_bytes=1))
    assert ready(served.url) == (200, "")
    served.client().push(delta("t1", {"n": 1}))
    assert ready(served.url) == (503, "behind")
    assert "behind: all gateways" in requests.get(served.url + "/ready", timeout=DEADLINE).text, "not how many"
    assert served.client().pull().status_code == 200
    assert ready(served.url) == (200, "")  # another gateway can accept pushes


def test_a_gateway_with_space_in_one_shard_is_not_behind(serve):
    served = serve(limits=EngineLimits(max_backpressure_bytes=1), shards=ShardMap({"todos": "todos"}, "rest"))
    client = served.client()
    assert client.push(delta("t1", {"n": 1})).status_code == 200
    assert client.push(delta("t2", {"n": 1})).status_code == 503
    assert ready(served.url) == (200, "")
    assert client.push(delta("o1", {"n": 1}, table="others")).status_code == 200
    assert ready(served.url) == (503, "behind")


@pytest.mark.parametrize(
    ("url", "stores", "folders"),
    [
        ("sqlite:///a/b", None, ["/a/b"]),
        ("sqlite:///a/b", {}, ["/a/b", "/a/b/todos"]),
        ("sqlite:///a/b", {"todos": "sqlite:///c"}, ["/a/b", "/c"]),
        ("postgresql://u@h/d", None, []),
    ],
)
def test_the_disks_of_the_staging_stores_are_checked(url, stores, folders):
    from lakesync import config

    given = {"staging": {"url": url}}
    if stores is not None:
        given["shard_config"] = {"shards": {"todos": "todos"}, "default": "rest", "stores": stores}
    assert [str(folder) for folder in GatewaySettings.of(config.load(given)).staging_folders] == folders
