"""How what landed goes into a gateway: as much at once as the budget allows, page by page, in chunks."""

import pyarrow as pa

from lakehouse.landing.reading import Waiting
from lakesync.connectors.source import Table
from lakesync.exceptions import BackpressureError
from resources.delivery import Delivery, Pace


class Landed:
    """Pages of ten deltas each, and what is asked for."""

    client_id = "connector:desk"

    def __init__(self, sizes):
        self.pages = [Waiting(page, 10, size) for page, size in enumerate(sizes)]
        self.asked, self.noted, self.settled = [], [], 0

    def waiting(self, _):
        return self.pages

    def deltas(self, _, pages):
        self.asked.append([each.page for each in pages])
        stamps = [each.page * 10 + number for each in pages for number in range(10)]
        return pa.table({"op": ["INSERT"] * len(stamps), "delta": [f"{stamp}" for stamp in stamps]})

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


def test_no_more_pages_than_the_budget_are_compared_at_once_and_a_full_gateway_is_waited_for():
    landed, gateway, pauses = Landed([40, 40, 40, 500, 10, 10]), Gateway(), []

    def flush():
        gateway.flushes += 1

    pace = Pace(chunk=15, budget_bytes=100)
    done = Delivery(landed, gateway, "gw", flush, pace, sleep=pauses.append).deliver(Table("issues"))
    assert landed.asked == [[0, 1], [2], [3], [4, 5]]
    assert landed.noted == [1, 2, 3, 5]
    assert (done.inserted, done.pushes, len(gateway.bodies)) == (60, 6, 6)
    assert b",".join(gateway.bodies).count(b'"clientId":"connector:desk"') == 6
    assert done.waited_s == sum(pauses) == 24.0
    assert gateway.flushes == 6
