"""The delivery of landed rows to a gateway: in chunks, task after task, at the gateway's pace."""

from contextlib import nullcontext

import pyarrow as pa
import pytest

from lakehouse.landing import delivery
from lakehouse.landing.delivery import Delivery
from lakesync.connectors.base import Table
from lakesync.model.errors import AdapterError, BackpressureError, ValidationError


class Rows:
    """The deltas of one partition, in batches; tasks run in this process."""

    def __init__(self, pages, batch):
        self.rows = pa.table(
            {
                "page": [page for page, count in pages for _ in range(count)],
                "hlc": range(sum(count for _, count in pages)),
                "op": ["INSERT"] * sum(count for _, count in pages),
                "delta": [str(number) for number in range(sum(count for _, count in pages))],
            }
        )
        self.batch, self.tasks = batch, 0

    def mapInArrow(self, task, _schema):  # noqa: N802 Spark's name
        self.tasks += 1
        self.found = list(task(iter(self.rows.to_batches(max_chunksize=self.batch))))
        return self

    def collect(self):
        return [row for batch in self.found for row in batch.to_pylist()]


class Landed:
    """The deltas of several pages; records the calls."""

    client_id = "connector:desk"

    def __init__(self, *pages, batch=7):
        self.rows = Rows(pages, batch)
        self.newest = pages[-1][0] if pages else 0
        self.noted, self.settled = [], 0

    def is_due(self, _):
        return self.newest > 0

    def deltas(self, _):
        return self.rows

    def deltas_of_days(self, _, __):
        return self.rows

    def record_delivered(self, _, page):
        self.noted.append(page)

    def update_known(self, _):
        self.settled += 1


class Gateway:
    """Rejects the given pushes, one after the other."""

    def __init__(self, *errors):
        self.errors, self.bodies, self.flushes = list(errors), [], 0

    def __call__(self):
        return nullcontext(self)

    def push(self, gateway, body):
        assert gateway == "gw"
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.bodies.append(body)

    def flush(self):
        self.flushes += 1

    def deltas(self):
        head, tail = b'{"clientId":"connector:desk","deltas":[', b"]}"
        assert all(body.startswith(head) and body.endswith(tail) for body in self.bodies)
        return b",".join(body[len(head) : -len(tail)] for body in self.bodies).decode().split(",")


def opened(landed, gateway, pauses=None, chunk=15, *, needs_schema=True):
    sleep = (pauses if pauses is not None else []).append
    return Delivery(landed, gateway, "gw", gateway.flush, needs_schema=lambda _: needs_schema, chunk=chunk, sleep=sleep)


def deliver(*given, **more):
    return opened(*given, **more).deliver(Table("issues"))


FULL = BackpressureError("too much", retry_after=2.0)


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_one_task_pushes_everything_in_ordered_chunks(batch):
    landed, gateway = Landed((1, 20), (2, 10), (5, 30), batch=batch), Gateway()
    done = deliver(landed, gateway)
    assert (done.inserted, done.pushes, done.waited_s) == (60, 4, 0)
    assert gateway.deltas() == [str(number) for number in range(60)]
    assert (landed.rows.tasks, landed.noted, landed.settled) == (1, [5], 1)


def test_a_source_that_is_down_delays_no_landed_row_of_a_table_with_a_schema():
    def unreachable():
        raise AdapterError("the database does not answer")

    table, landed = Table("issues", schema=unreachable), Landed((1, 20))
    with pytest.raises(AdapterError):
        opened(landed, Gateway()).deliver(table)
    found = opened(landed, Gateway(), needs_schema=False)
    assert (found.deliver(table).deltas, found.replay(table, []).deltas) == (20, 20)


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_a_push_is_not_larger_than_the_gateway_accepts_unless_one_delta_is(batch, monkeypatch):
    monkeypatch.setattr(delivery, "MAX_REQUEST_BYTES", 6)
    landed, gateway = Landed((1, 120), batch=batch), Gateway(None, FULL)
    done = deliver(landed, gateway)
    assert gateway.deltas() == [str(number) for number in range(120)]
    parts = [body.partition(b"[")[2].removesuffix(b"]}").split(b",") for body in gateway.bodies]
    assert [len(part) for part in parts] == [6, 5] + [3] * 29 + [2] * 11, "of 1, 2 and 3 bytes"
    assert done.pushes == len(parts)
    monkeypatch.setattr(delivery, "MAX_REQUEST_BYTES", 1)
    assert deliver(Landed((1, 12), batch=batch), Gateway()).pushes == 12


def test_a_delivery_waits_for_a_full_gateway_outside_of_tasks_and_repeats_no_push():
    landed, gateway, pauses = Landed((1, 20), (2, 10), (5, 30)), Gateway(None, None, FULL, FULL, None, FULL), []
    done = deliver(landed, gateway, pauses)
    assert (done.inserted, done.pushes, len(gateway.bodies)) == (60, 4, 4)
    assert gateway.deltas() == [str(number) for number in range(60)]
    assert landed.noted == [1, 2, 5], (
        "a page is recorded when a delta of the next page is accepted, the last one at the end"
    )
    assert (landed.rows.tasks, done.waited_s, pauses) == (4, 6.0, [2.0, 2.0, 2.0])
    assert gateway.flushes == 2, "called once for each stop"


def test_a_delivery_to_a_gateway_that_stays_full_fails(monkeypatch):
    monkeypatch.setattr(delivery, "PATIENCE_SECONDS", 4.0)
    landed, gateway = Landed((1, 20)), Gateway(*[FULL] * 9)
    with pytest.raises(BackpressureError):
        deliver(landed, gateway)
    assert (landed.noted, len(gateway.errors)) == ([], 6)


def test_a_long_delivery_is_continued_by_another_task(monkeypatch):
    monkeypatch.setattr(delivery, "SECONDS_PER_TASK", 0.0)
    landed, gateway = Landed((1, 20), (2, 10)), Gateway()
    assert deliver(landed, gateway, chunk=10).inserted == 30
    assert gateway.deltas() == [str(number) for number in range(30)]
    assert (landed.rows.tasks, landed.noted) == (4, [1, 2])


def test_a_rejected_delivery_fails_with_the_reason_and_accepted_deltas_are_recorded():
    landed, gateway = Landed((1, 20), (2, 10)), Gateway(None, None, ValidationError("no such column"))
    with pytest.raises(ValidationError, match="no such column"):
        deliver(landed, gateway, chunk=11)
    assert landed.noted == [1]


def test_the_gateway_is_not_called_without_landed_rows():
    landed = Landed()
    done = deliver(landed, Gateway())
    assert (done.deltas, done.pushes, landed.rows.tasks) == (0, 0, 0)
