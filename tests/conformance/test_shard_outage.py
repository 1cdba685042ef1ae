"""An unreachable shard delays only requests that need it, and every client ends with its rows."""

from __future__ import annotations

from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

from lakesync.engine import Engine
from lakesync.model.errors import NotFoundError, StagingUnavailableError
from lakesync.model.schema import TableSchema, parse_schema
from lakesync.model.types import Op
from lakesync.rules.model import SyncRules
from lakesync.staging.memory import MemoryStore
from lakesync.staging.sharded import ShardedStore
from lakesync.staging.shards import ShardMap
from lakesync.testing import ManualClock
from tests.property.feed_model import StockClient

SHARDS = ShardMap({"orders": "shard-orders", "planes": "shard-planes"}, "shard-default")


class FrailStore(MemoryStore):
    """A store that can be made unreachable."""

    out = False

    def submit(self, gateway: str, work: Any) -> Future[Any]:
        return self._failed() if self.out else super().submit(gateway, work)

    def read(self, gateway: str, work: Any) -> Future[Any]:
        return self._failed() if self.out else super().read(gateway, work)

    def _failed(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(StagingUnavailableError("the line is cut", retry_after=7))
        return future


@pytest.fixture
def stores():
    clock = ManualClock()
    return {name: FrailStore(clock, shard=name) for name in SHARDS.names}


@pytest.fixture
def gateway(stores):
    clock = ManualClock()
    engine = Engine(ShardedStore(SHARDS, stores), clock)
    engine.open()
    yield engine.gateway("g")
    engine.close()


def client(name: str) -> StockClient:
    made = StockClient(name, [], 0)
    made.tables = {"o1": "orders", "o2": "orders", "o3": "orders"}
    return made


_times = count(1_600_000_000_000)


def edit(one: StockClient, row: str, op: Op = "INSERT", **values: int) -> None:
    one.edit(op, row, values, next(_times))


def settled(gateway, *clients: StockClient) -> None:
    for one in clients:
        one.catch_up(gateway, 2)
    assert all(one.rows == clients[0].rows for one in clients)


def test_pushes_to_other_shards_are_answered_and_others_name_the_shard(gateway, stores):
    ann = client("ann")
    edit(ann, "t1", x=1)
    stores["shard-orders"].out = True
    ann.push(gateway)
    assert not ann.outbox
    edit(ann, "o1", x=1)
    for ask in (ann.push, lambda over: ann.ask(over, 10)):
        with pytest.raises(StagingUnavailableError, match="shard 'shard-orders' does not respond") as raised:
            ask(gateway)
        assert raised.value.retry_after == 7
    stores["shard-orders"].out = False
    ann.push(gateway)
    ben = client("ben")
    settled(gateway, ann, ben)
    assert ann.rows.keys() == {"t1", "o1"}


@pytest.mark.parametrize("received", [False, True])
def test_rows_of_a_shard_sent_before_its_outage_are_neither_lost_nor_sent_as_new(gateway, stores, received):
    ann, ben = client("ann"), client("ben")
    edit(ben, "o1", x=1)
    ben.push(gateway)
    ann.take(ann.ask(gateway, 10))
    edit(ben, "o2", x=1)
    edit(ben, "o1", "DELETE")
    ben.push(gateway)
    page = ann.ask(gateway, 10)
    if received:
        ann.take(page)
    stores["shard-orders"].out = True
    edit(ann, "t1", x=1)
    ann.push(gateway)
    stores["shard-orders"].out = False
    edit(ben, "o1", x=2)
    edit(ben, "o3", x=1)
    ben.push(gateway)
    settled(gateway, ann, ben)
    assert ann.rows.keys() == {"t1", "o1", "o2", "o3"}


def test_a_client_that_never_pulled_is_sent_everything(gateway, stores):
    ann, ben = client("ann"), client("ben")
    edit(ann, "o1", x=1)
    ann.push(gateway)
    edit(ben, "o2", x=1)
    ben.push(gateway)
    stores["shard-orders"].out = True
    edit(ann, "t1", x=1)
    ann.push(gateway)
    stores["shard-orders"].out = False
    settled(gateway, ann, ben)
    assert ann.rows.keys() == {"t1", "o1", "o2"}


def schema(kind: str) -> TableSchema:
    return parse_schema({"table": "orders", "columns": [{"name": "x", "type": kind}]})


def schemas_of(gateway) -> list[TableSchema | None]:
    """The schema of `orders` in each shard."""
    found = [part.config().schemas.get("orders") for part in gateway._shards.values()]
    return [each and each.schema for each in found]


def test_a_repeated_retirement_reaches_the_shard_that_missed_the_first(gateway, stores):
    gateway.register_schema(schema("number"))
    stores["shard-orders"].out = True
    with pytest.raises(StagingUnavailableError):
        gateway.retire_schema("orders")
    stores["shard-orders"].out = False
    assert gateway.retire_schema("orders") == 2
    assert schemas_of(gateway) == [None] * 3
    with pytest.raises(NotFoundError):
        gateway.retire_schema("orders")


@pytest.mark.parametrize("missed", ["retirement", "both"])
def test_a_shard_that_missed_a_retirement_gets_the_later_schema(gateway, stores, missed):
    gateway.register_schema(schema("number"))
    stores["shard-orders"].out = True
    with pytest.raises(StagingUnavailableError):
        gateway.retire_schema("orders")
    stores["shard-orders"].out = missed == "both"
    if missed == "both":
        gateway._default_shard.register_schema(schema("string"))
        stores["shard-orders"].out = False
        gateway.align_shards()
    else:
        gateway.register_schema(schema("string"))
    assert schemas_of(gateway) == [schema("string")] * 3


def test_a_change_reaches_every_shard_that_can_be_reached_and_a_repeat_completes_it(gateway, stores):
    rules, planes = SyncRules(1, ()), {"table": "planes", "columns": [{"name": "x", "type": "number"}]}
    shards = [gateway._shards[name] for name in ("shard-default", "shard-orders", "shard-planes")]
    stores["shard-orders"].out = True
    for change in (
        lambda: gateway.set_rules(rules),
        lambda: gateway.set_write_scope("any"),
        lambda: gateway.register_schema(planes),
    ):
        with pytest.raises(StagingUnavailableError):
            change()
    stores["shard-orders"].out = False
    assert [shard.config().rules for shard in shards] == [rules, None, rules]
    assert [shard.config().write_scope for shard in shards] == ["any", None, "any"]
    assert [len(shard.config().schemas) for shard in shards] == [1, 0, 1]
    gateway.set_rules(rules)
    gateway.set_write_scope("any")
    gateway.register_schema(planes)
    for config in [shard.config() for shard in shards]:
        assert (config.rules, config.write_scope, {*config.schemas}) == (rules, "any", {"planes"})
