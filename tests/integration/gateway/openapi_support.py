"""What the generated requests need: constraints that JSON Schema cannot express, and a checkpoint."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from lakesync.flush import FlushContext, FlushedTable, FlushQueue
from lakesync.model.schema import RESERVED_COLUMNS, parse_schema
from lakesync.model.types import SyncResponse
from lakesync.staging.records import Checkpoint, CheckpointTable
from lakesync.staging.store import StagingStore
from lakesync.wire import protobuf
from lakesync.wire.frames import encode_checkpoint_frame

_TABLES = count()


def consistent(body: Any) -> Any:
    """Make the parts of a generated body consistent, as the document's prose requires."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("deltas"), list):
        for delta in body["deltas"]:
            delta["clientId"] = body["clientId"]
            delta["table"] = delta["table"].lower()  # names of tables may not differ only in case
            delta["columns"] = [] if delta["op"] == "DELETE" else _unique(delta["columns"], "column")
        body["deltas"] = _unique(body["deltas"], "deltaId")
    if isinstance(body.get("columns"), list):
        body["columns"] = [
            column for column in _unique(body["columns"], "name") if column["name"].lower() not in RESERVED_COLUMNS
        ] or [{"name": "title", "type": "string"}]
        body["table"] = f"{body['table'][:50]}_{next(_TABLES)}"  # a registered table can only grow
        names = [column["name"] for column in body["columns"]]
        if "primaryKey" in body:
            body["primaryKey"] = names[:2]
        if body.get("externalIdColumn") is not None:
            body["externalIdColumn"] = names[0]
    if isinstance(body.get("buckets"), list):
        body["buckets"] = _unique(body["buckets"], "name")
    return body


def _unique(items: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return list({item[name].lower(): item for item in items}.values())


def set_a_job_aside(queue: FlushQueue, gateway: str) -> None:
    """Suspend the job of the document's example."""
    if queue.failed(gateway):
        return
    work = FlushedTable(parse_schema({"table": "todos", "columns": [{"name": "title", "type": "string"}]}), ("t1",), 1)
    queue.publish([work], FlushContext(gateway, "gw.main.1.1-1", 0))
    queue.set_aside(queue.pending(gateway)[0], "it does not fit")


def publish_checkpoint(store: StagingStore, gateway: str, folder: Path) -> None:
    """Publish a checkpoint of one empty frame at the gateway's newest arrival."""
    config = store.gateway_config(gateway)
    (head,) = [shard for shard in store.backlog() if shard.gateway == gateway]
    frame = folder / "todos-0.frames"
    frame.write_bytes(encode_checkpoint_frame(protobuf.encode_response(SyncResponse((), head.last_arrival))))
    table = CheckpointTable("todos", 1, 0, (frame.as_uri(),), frame.stat().st_size)
    assert store.publish_checkpoint(
        Checkpoint(gateway, head.epoch, head.last_arrival, config.rules_version, (table,), 0)
    )
