"""An erased client that still has its cursor, and whose line sent it pages that it did not receive."""

from __future__ import annotations

import pytest

from lakesync.engine import Engine, EngineLimits
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import ColumnValue, RowDelta, SyncPull, SyncPush
from lakesync.rules.model import parse_rules
from lakesync.staging import open_store

START = 1_700_000_000_000
RULES = parse_rules(
    {
        "version": 1,
        "buckets": [{"name": "mine", "tables": [], "filters": [{"column": "group", "op": "eq", "value": "jwt:group"}]}],
    }
)


def ann(group: str) -> dict[str, str]:
    return {"sub": "ann", "group": group}


@pytest.mark.parametrize("way", ["resumes", "open line", "pull from 0"])
def test_the_cursor_of_an_erased_client_is_not_taken_for_one_of_the_pages_that_it_did_not_receive(tmp_path, way):
    engine = Engine(open_store(f"sqlite://{tmp_path}", lambda: START), lambda: START, EngineLimits(write_scope="any"))
    engine.open()
    try:
        gateway = engine.gateway("g")
        gateway.set_rules(RULES)
        for tick, group in enumerate("ab"):
            columns = (ColumnValue.of("group", group),)
            stamp = hlc.encode(START + tick, 0)
            identity = delta_id(client_id="ben", hlc=stamp, table="notes", row_id=group, columns=columns)
            delta = RowDelta("INSERT", "notes", group, "ben", columns, stamp, identity)
            gateway.handle_push(SyncPush("ben", (delta,)), {"sub": "ben", "group": "a"})
        cursor = gateway.handle_pull(SyncPull("ann", 0, 100), ann("a")).server_hlc
        engine.store.erase_client("g", "ann")
        if way == "resumes":  # its claims have changed, and it connects; the line is lost before the page arrives
            since = gateway.submit_resume("ann", ann("b")).result(60)
            pull = SyncPull("ann", since, 100)
            gateway.submit_pull(pull, ann("b"), confirmed=False, has_not_pulled=True).result(60)
        elif way == "open line":
            gateway.submit_pull(SyncPull("ann", cursor, 100), ann("b"), confirmed=False).result(60)
        else:
            gateway.handle_pull(SyncPull("ann", 0, 100), ann("b"))
        page = gateway.handle_pull(SyncPull("ann", cursor, 100), ann("b"))
        assert [(each.op, each.row_id) for each in page.deltas] == [("DELETE", "b"), ("INSERT", "b")]
    finally:
        engine.close()
