"""Longest times of a push and of a pull while a row is erased, which rewrites the files of the store.

The store is SQLite's, because the one on Postgres vacuums its tables, which delays no request. `push_longest_ms` and
`pull_longest_ms` are those during the erasure, and those with `_before` are without one. `left` has the names of files
that contain the erased value afterwards: none.
"""

from __future__ import annotations

import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import msgspec
import requests

from benchmarks import load, server
from benchmarks.suite import Benchmark
from lakesync.model.delta import extract_delta
from lakesync.wire import json as wire_json

_SERVICE_TOKEN = "the service token of the benchmarks"  # noqa: S105 it guards nothing
_ERASED = "the value that is erased"
_SECONDS = 300.0
"""Longest time of a request, also of the erasure."""


class _Timed:
    """Sends requests in threads until `stop`, and notes when each began and how long it took."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.times: dict[str, list[tuple[float, float]]] = {"push": [], "pull": []}

    def repeat(self, name: str, send: Callable[[], None]) -> None:
        """Send requests one after another."""
        while not self.stop.is_set():
            begun = time.monotonic()
            send()
            self.times[name].append((begun, time.monotonic()))

    def longest_ms(self, name: str, since: float, until: float) -> int:
        """Return the longest duration among requests that ran at a time of this range, in milliseconds."""
        ran = [ended - begun for begun, ended in self.times[name] if ended > since and begun < until]
        return round(max(ran) * 1000)


def arguments(parser: ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=20, help="additional columns of a row")
    parser.add_argument("--seconds", type=float, default=5, help="duration of the load before the erasure")


def run(options: Namespace) -> dict[str, Any]:
    """Run the benchmark."""
    rows = load.PushLoad(
        clients=4, rows=options.rows, batch=500, deltas=options.rows, seconds=3600, columns=options.columns
    )
    with (
        server.temporary_folder(options.folder) as folder,
        server.gateway(folder / "gateway", LAKESYNC_SERVICE_TOKEN=_SERVICE_TOKEN) as gateway,
    ):
        load.run_in_process(load.push, gateway.port, rows)
        url = f"http://127.0.0.1:{gateway.port}"
        _push(url, "eraser", "erased", _ERASED)
        gateway.wait_idle()
        stored = gateway.stored_bytes()
        timed, numbers = _Timed(), count()
        with ThreadPoolExecutor(2) as threads:
            loads = [
                threads.submit(timed.repeat, "push", lambda: _push(url, "pusher", f"new-{next(numbers)}", "kept")),
                threads.submit(timed.repeat, "pull", lambda: _pull(url)),
            ]
            try:
                begun = time.monotonic()
                timed.stop.wait(options.seconds)
                erasing = time.monotonic()
                row = {"gateway": server.GATEWAY, "table": "notes", "row_id": "erased"}
                _post(f"{url}/internal/staging/erase_row", row, _SERVICE_TOKEN)
                erased = time.monotonic()
            finally:
                timed.stop.set()
            for each in loads:
                each.result()
        files = [file for file in gateway.folder.rglob("*") if file.is_file()]
        return {
            "stored_mib": stored >> 20,
            "seconds": round(erased - erasing, 2),
            **{f"{name}_longest_ms": timed.longest_ms(name, erasing, erased) for name in timed.times},
            **{f"{name}_longest_ms_before": timed.longest_ms(name, begun, erasing) for name in timed.times},
            "left": [file.name for file in files if _ERASED.encode() in file.read_bytes()],
        }


def _push(url: str, client: str, row_id: str, value: str) -> None:
    hlc = (time.time_ns() // 1_000_000) << 16
    delta = extract_delta(None, {"v": value}, table="notes", row_id=row_id, client_id=client, hlc=hlc)
    assert delta is not None
    body = {"clientId": client, "deltas": [msgspec.Raw(wire_json.encode_delta(delta))], "lastSeenHlc": "0"}
    _post(f"{url}/sync/{server.GATEWAY}/push", body, server.token(client))


def _pull(url: str) -> None:
    query = {"since": "0", "clientId": "reader", "limit": "100"}
    headers = _bearer(server.token("reader"))
    _check(requests.get(f"{url}/sync/{server.GATEWAY}/pull", params=query, headers=headers, timeout=_SECONDS))


def _post(url: str, body: dict[str, Any], token: str) -> None:
    headers = {**_bearer(token), "Content-Type": "application/json"}
    _check(requests.post(url, data=msgspec.json.encode(body), headers=headers, timeout=_SECONDS))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _check(response: requests.Response) -> None:
    if response.status_code != requests.codes.ok:
        raise RuntimeError(f"{response.status_code} {response.text[:200]}")


BENCHMARKS = (Benchmark("erasure", __doc__, arguments, run),)
