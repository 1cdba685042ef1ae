"""How what landed goes into a gateway: one bounded result after the other, in chunks, at the gateway's pace."""

import pyarrow as pa

from lakesync.connectors.source import Table
from lakesync.exceptions import BackpressureError
from resources.delivery import Delivery, Pace


class Landed:
    """Results of so many deltas each, and what is asked for."""

    client_id = "connector:desk"

    def __init__(self, counts):
        self.counts = counts
        self.noted, self.settled, self.budget = [], 0, None

    def is_due(self, _):
        return bool(self.counts)

    def deltas(self, _, budget):
        self.budget = budget
        for page, count in enumerate(self.counts):
            assert self.noted == list(range(page)), "what was taken is noted before more is computed"
            stamps = range(page * 100, page * 100 + count)
            yield pa.table({"op": ["INSERT"] * count, "delta": [f"{stamp}" for stamp in stamps]}), page

    def told(self, _, page):
        self.noted.append(page)

    def settle(self, _):
        self.settled += 1


class Gateway:
    """Takes one push of three."""

    def __init__(self):
        self.bodies, self.asked, self.flushes = [], 0, 0

    def ensure_schema(self, *_):
        raise AssertionError("the table has none")

    def push(self, _, body):
        self.asked += 1
        if self.asked % 3:
            raise BackpressureError("too much", retry_after=2.0)
        self.bodies.append(body)


def test_results_are_pushed_one_after_the_other_and_a_full_gateway_is_waited_for():
    landed, gateway, pauses = Landed([20, 10, 10, 20]), Gateway(), []

    def flush():
        gateway.flushes += 1

    pace = Pace(chunk=15, budget_bytes=100)
    done = Delivery(landed, gateway, "gw", flush, pace, sleep=pauses.append).deliver(Table("issues"))
    assert (landed.budget, landed.noted, landed.settled) == (100, [0, 1, 2, 3], 1)
    assert (done.inserted, done.pushes, len(gateway.bodies)) == (60, 6, 6)
    assert b",".join(gateway.bodies).count(b'"clientId":"connector:desk"') == 6
    assert done.waited_s == sum(pauses) == 24.0
    assert gateway.flushes == 6


def test_nothing_is_asked_of_the_gateway_where_nothing_landed():
    done = Delivery(Landed([]), None, "gw", None).deliver(Table("issues"))
    assert (done.deltas, done.pushes) == (0, 0)
