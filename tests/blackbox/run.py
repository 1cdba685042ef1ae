"""Plays histories by seed, several at a time, and reduces those that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from typing import Any, NamedTuple

from tests.blackbox.clients import WrongError
from tests.blackbox.histories import history
from tests.blackbox.overlap import OverlappingGame
from tests.blackbox.server import RefusedError, Request, Server
from tests.blackbox.steps import Step

_names = count()
AT_ONCE = 20
"""The number of histories that share the kills of one server."""
THREADS = 5
"""The number of histories that are played concurrently; a history waits most of its time."""
TRIES = 10
"""The number of times that a case with concurrent requests must pass, because it may fail at random."""


class Case(NamedTuple):
    """A history to play."""

    setting: dict[str, Any]
    steps: list[Step]


class Failure(NamedTuple):
    """What is wrong with a history."""

    seed: int
    why: str
    case: Case
    requests: list[str]

    def report(self) -> str:
        """A reproduction to read and to run again."""
        lines = [f"seed {self.seed}: {self.why}", f"  setting = {self.case.setting!r}", "  steps = ["]
        lines += [f"      {step!r}," for step in self.case.steps]
        return "\n".join([*lines, "  ]", *(f"  {request}" for request in self.requests)])


class _Table:
    """A history in progress."""

    def __init__(self, server: Server, case: Case) -> None:
        self.game = OverlappingGame(server, f"bb-{next(_names)}", case.setting)
        self._steps = self.game.play(case.steps)
        self.why: str | None = None
        self.over = False

    def go_on(self) -> Request | None:
        """Play on until the server must be killed; return the requests in progress at that time."""
        try:
            return next(self._steps)
        except StopIteration:
            pass
        except (WrongError, RefusedError, AssertionError) as error:  # an assertion: an unexpected response
            self.why = str(error)
        self.over = True
        return None


def play(server: Server, cases: Sequence[Case]) -> list[tuple[str, list[str]] | None]:
    """Play cases, each on a separate gateway; return what is wrong with each, and its requests."""
    tables = [_Table(server, case) for case in cases]
    while True:
        with ThreadPoolExecutor(THREADS) as threads:
            on_the_way = list(threads.map(_Table.go_on, [table for table in tables if not table.over]))
        if all(table.over for table in tables):
            return [(table.why, table.game.requests) if table.why is not None else None for table in tables]
        server.die([request for request in on_the_way if request is not None])


def wrong(server: Server, case: Case) -> tuple[str, list[str]] | None:
    """Return what is wrong with a case, and its requests; a case with concurrent requests is played several times."""
    times = TRIES if any(step[0] == "and" for step in case.steps) else 1
    return next((found for found in play(server, [case] * times) if found is not None), None)


def smaller(server: Server, case: Case) -> Case:
    """Reduce a wrong case to the parts that it needs."""
    size = max(1, len(case.steps) // 2)
    while True:
        place = 0
        while place < len(case.steps):
            without = Case(case.setting, case.steps[:place] + case.steps[place + size :])
            if wrong(server, without):
                case = without
            else:
                place += size
        if size == 1:
            return case
        size = max(1, size // 2)


def search(
    server: Server,
    seeds: Iterator[int],
    *,
    kills: bool = False,
    live: bool = False,
    fill_every: int = 12,
    overlap_every: int = 2,
    shrink: bool = True,
) -> Iterator[tuple[int, list[Failure]]]:
    """Play the histories of seeds; yield the number played so far and the wrong ones.

    Args:
        server: the server.
        seeds: of the histories.
        kills: whether processes of the server are killed.
        live: whether stock clients have WebSockets.
        fill_every: every nth history has a gateway with many rows; 0: none.
        overlap_every: every nth history has concurrent requests; 0: none.
        shrink: whether wrong histories are reduced.
    """
    while True:
        some = list(islice(seeds, AT_ONCE))
        if not some:
            return
        cases = [
            Case(
                *history(
                    seed,
                    kills=kills,
                    live=live,
                    fill=bool(fill_every) and seed % fill_every == 0,
                    processes=server.processes,
                    overlap=bool(overlap_every) and seed % overlap_every == 0,
                )
            )
            for seed in some
        ]
        failures = []
        for seed, case, found in zip(some, cases, play(server, cases), strict=True):
            if found is None:
                continue
            if shrink:
                print(f"seed {seed} is wrong, and is now reduced: {found[0]}", file=sys.stderr, flush=True)
            small = smaller(server, case) if shrink else case
            again = wrong(server, small) or found
            failures.append(Failure(seed, again[0], small, again[1]))
        yield len(some), failures


def found_wrong(server: Server, seeds: Iterable[int], **chosen: Any) -> list[str]:
    """Return reports of the wrong histories of these seeds, not reduced; options as for `search`."""
    found = search(server, iter(seeds), **{"fill_every": 0, **chosen}, shrink=False)
    return [failure.report() for _, failures in found for failure in failures]
