"""`lakesync flush` waits for what was unflushed when it began, although clients go on pushing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
from typer.testing import CliRunner

from lakesync.analysis.marks import REPORT, Report
from lakesync.cli.app import app
from lakesync.model.delta import id_number
from lakesync.staging.records import Checkpoint
from tests.integration.gateway_support import delta, sign


def test_a_flush_ends_while_clients_go_on_pushing(served, tmp_path):
    """The pipeline's checkpoint always lacks the newest push."""
    client, store, stopped = served.client(), served.engine.store, Event()
    store.put_mark(REPORT, msgspec.json.encode(Report(0)).decode())

    def push(number):
        pushed = delta(f"t{number}", {"n": number})
        assert client.push(pushed).ok
        return id_number(pushed["deltaId"])

    def pipeline(first):
        unflushed, number = [first], 1
        while not stopped.wait(0.3):
            cut = store.cut_point(client.gateway)
            unflushed.append(push(number))
            batch = store.plan(client.gateway, "main", 1_000)
            store.confirm(batch.batch_id, len(unflushed), sum(unflushed) % 2**64, 77)
            unflushed, number = [push(number + 1)], number + 2
            stopped.wait(0.3)
            store.publish_checkpoint(Checkpoint(client.gateway, cut.epoch, cut.arrival, 0, (), 0))

    variables = {
        "LAKESYNC_CONFIG": "",
        "LAKESYNC_TOKEN": sign("ops", client.gateway, role="admin"),
        "LAKESYNC_REMOTE_URL": served.url,
        "LAKESYNC_DATA_DIR": str(tmp_path),
    }
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pipeline, push(0))
        try:
            result = CliRunner().invoke(app, ["flush", "--wait", "20", "--json"], env=variables)
        finally:
            stopped.set()
        running.result()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"requested": True, "flushed": True, "merged": True, "snapshotId": "77"}
