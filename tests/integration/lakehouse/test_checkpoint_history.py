"""K1 with random histories: checkpoints during merges and rule changes, loaded by clients that use plain INSERTs."""

import io
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.checkpoint_frames import frame_files, visible_frames
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.history.flush import flush_backlog
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames
from lakehouse.tables.merging import merge_table
from lakesync.engine import Engine
from lakesync.model.delta import delta_id
from lakesync.model.errors import NotFoundError
from lakesync.model.schema import parse_schema
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_staging
from lakesync.staging.shards import ShardMap
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response
from tests.integration.gateway_support import wall_ms

ROUNDS = 2
SHARDS = ShardMap({"u": "shard-u"}, "shard-default")
SCHEMAS = [
    parse_schema({"table": table, "columns": [{"name": "team", "type": "string"}, {"name": "x", "type": "number"}]})
    for table in ("t", "u")
]
RULES = [
    {"version": 1, "buckets": []},
    {
        "version": 1,
        "buckets": [{"name": "own", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
    },
    {"version": 1, "buckets": [{"name": "t", "tables": ["t"], "filters": []}]},
]
TEAMS = ("red", "blue")

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


class Reader:
    """A client that fails on an INSERT of an existing row."""

    def __init__(self, name, team):
        self.claims = {"sub": name, "team": team}
        self.rows = {}
        self.cursor = 0

    def apply(self, deltas):
        for delta in deltas:
            key = (delta.table, delta.row_id)
            values = {cell.column: bytes(cell.value).decode() for cell in delta.columns}
            if delta.op == "INSERT":
                assert key not in self.rows, f"{self.claims['sub']} has {key} and is sent it again"
                self.rows[key] = values
            elif delta.op == "DELETE":
                self.rows.pop(key, None)
            elif key in self.rows:
                self.rows[key] |= values

    def checkpoint(self, gateway):
        """Run the first sync; return whether there was a checkpoint."""
        try:
            checkpoint = gateway.submit_checkpoint(self.claims["sub"], self.claims).result()
        except NotFoundError:
            return False
        for frame in visible_frames(frame_files(checkpoint), gateway.config().rules, self.claims):
            for message in read_checkpoint(io.BytesIO(frame)):
                self.apply(decode_response(message).deltas)
        self.cursor = checkpoint.arrival
        return True

    def pull(self, gateway):
        while True:
            page = gateway.handle_pull(SyncPull(self.claims["sub"], self.cursor, 20), self.claims)
            self.apply(page.deltas)
            self.cursor = page.server_hlc
            if not page.has_more:
                return


def push(gateway, rng, count):
    for number in range(count):
        client = rng.choice("abc")
        op = rng.choices(["INSERT", "UPDATE", "DELETE"], [4, 5, 1])[0]
        values = {} if op == "DELETE" else {"team": rng.choice(TEAMS), "x": number}
        cells = tuple(ColumnValue.of(name, value) for name, value in values.items())
        table, row, hlc = rng.choice("tu"), f"r{rng.randint(1, 25)}", (wall_ms() << 16) + rng.randint(0, 60_000)
        identity = delta_id(client_id=client, hlc=hlc, table=table, row_id=row, columns=cells)
        gateway.handle_push(SyncPush(client, (RowDelta(op, table, row, client, cells, hlc, identity),)))


def test_k1_clients_that_load_a_checkpoint_and_pull_have_the_visible_rows(spark_server, tmp_path):
    config, names = spark_server["config"], LakeNames("lake", "sys_cut_history", "tab_cut_history")
    engine = Engine(open_staging(f"sqlite://{tmp_path}/staging", SHARDS, wall_ms), wall_ms)
    engine.open()
    gateway, store, rng = engine.gateway("g"), engine.store, random.Random("sharded")
    readers, from_checkpoints = [], 0

    def change_rules():
        gateway.set_rules(parse_rules(rng.choice(RULES)))

    def checkpoint(spark):
        return make_checkpoint(spark, store, hold, SCHEMAS, directory_uri=(tmp_path / "frames").as_uri(), names=names)

    try:
        with session(config) as spark, session(config) as other, ThreadPoolExecutor(1) as threads:
            for _ in range(ROUNDS):
                push(gateway, rng, 30)
                if rng.random() < 0.6:
                    change_rules()
                hold = store.cut_point("g")
                push(gateway, rng, 10)
                if rng.random() < 0.4:
                    change_rules()
                flush_backlog(spark, store, names=names)
                merging = threads.submit(merge_table, other, SCHEMAS[0], {"g": hold.arrival}, names=names)
                made = checkpoint(spark)
                merging.result()
                merge_table(spark, SCHEMAS[0], {"g": store.cut_point("g").arrival}, names=names)
                assert made.arrival == hold.arrival
                for number in range(3):
                    reader = Reader(f"reader-{len(readers)}", TEAMS[number % 2])
                    from_checkpoints += reader.checkpoint(gateway)
                    readers.append(reader)
                push(gateway, rng, 5)
                for reader in readers:
                    reader.pull(gateway)
        assert from_checkpoints > 2
        for team in TEAMS:
            truth = Reader(f"new-{team}", team)
            truth.pull(gateway)
            for reader in readers:
                if reader.claims["team"] == team:
                    assert reader.rows == truth.rows
    finally:
        engine.close()
