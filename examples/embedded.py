"""`python -m examples.embedded FOLDER`: two tills share a stock list through a gateway in this process.

A gateway is one app's stream of deltas (changes of rows), here that of a shop. Deltas are flushed to Parquet files in
FOLDER, which any tool can read. A second start restores the stock from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import lakesync
from lakesync import FlushSettings, RowDelta, SyncGateway, SyncPull, SyncPush
from lakesync.adapters import LocalDisk


class Till:
    """A client: its rows, its clock and its cursor."""

    def __init__(self, name: str) -> None:
        """Create a till without stock; its name is its client id."""
        self.name = name
        self.stock: dict[str, dict[str, object]] = {}
        """Item → its columns."""
        self._clock = lakesync.HLC()
        self._cursor = 0

    def set(self, item: str, **values: object) -> RowDelta:
        """Change some columns of an item locally, and return the delta."""
        before = self.stock.get(item)
        after = {**(before or {}), **values}
        self.stock[item] = after
        delta = lakesync.extract_delta(
            before, after, table="stock", row_id=item, client_id=self.name, hlc=self._clock.now()
        )
        assert delta is not None, "the values were the same"
        return delta

    def pull(self, gateway: SyncGateway) -> None:
        """Apply the changes of other tills since the last pull."""
        for delta in self._new_deltas(gateway):
            if delta.op == "DELETE":
                self.stock.pop(delta.row_id, None)
            else:
                cells = {cell.column: cell.decoded() for cell in delta.columns}
                self.stock.setdefault(delta.row_id, {}).update(cells)

    def _new_deltas(self, gateway: SyncGateway) -> Iterator[RowDelta]:
        """Yield the deltas after the cursor, page by page, and advance the cursor."""
        more = True
        while more:
            page = gateway.handle_pull(SyncPull(self.name, self._cursor, 1000))
            self._cursor, more = page.server_hlc, page.has_more
            yield from page.deltas


def main(folder: Path) -> None:
    """Restore the stock from the files in a folder, sell some screws at one till, and set their price at the other."""
    with lakesync.open_gateway("shop", adapter=LocalDisk(folder), flush=FlushSettings(batch_deltas=1000)) as gateway:
        print(f"restored from earlier days: {gateway.rehydrate()} deltas")
        left, right = Till("left"), Till("right")
        for till in (left, right):
            till.pull(gateway)
        print(f"screws in stock: {left.stock.get('screws', {}).get('count', 'unknown')}")

        count = left.stock.get("screws", {}).get("count", 100)
        assert isinstance(count, int)
        gateway.handle_push(SyncPush("left", (left.set("screws", count=count - 10, shelf="A3"),)))
        right.pull(gateway)
        gateway.handle_push(SyncPush("right", (right.set("screws", cents=5 + count // 10),)))
        left.pull(gateway)

        assert left.stock == right.stock, "both tills show the same"
        print(f"both tills: {left.stock['screws']}")
        print(f"not flushed yet: {gateway.buffer_stats().log_size} deltas")
    for info in LocalDisk(folder).list_objects("deltas/shop/").objects:
        print(f"flushed: {info.key.rpartition('/')[2].partition('.')[2]}, {info.size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.embedded", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("folder", type=Path, help="the folder for the Parquet files")
    main(parser.parse_args().folder)
