"""Histories by their seeds: played, several at a time, and made small where wrong."""

from __future__ import annotations

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
"""Histories that share the server's deaths."""
THREADS = 5
"""Of which so many are played at the same moment: a history waits most of its time."""
TRIES = 10
"""How often a case whose requests overlap is played before it counts as right: it may go wrong by chance."""


class Case(NamedTuple):
    """A history to be played."""

    setting: dict[str, Any]
    steps: list[Step]


class Failure(NamedTuple):
    """What was found."""

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
    """A history on its way."""

    def __init__(self, server: Server, case: Case) -> None:
        self.game = OverlappingGame(server, f"bb-{next(_names)}", case.setting)
        self._steps = self.game.play(case.steps)
        self.why: str | None = None
        self.over = False

    def go_on(self) -> Request | None:
        """Up to where the server is to die; what is on its way then."""
        try:
            return next(self._steps)
        except StopIteration:
            pass
        except (WrongError, RefusedError) as error:
            self.why = str(error)
        self.over = True
        return None


def play(server: Server, cases: Sequence[Case]) -> list[tuple[str, list[str]] | None]:
    """Play cases, each on a gateway of its own; what each of them found wrong, and its requests."""
    tables = [_Table(server, case) for case in cases]
    while True:
        with ThreadPoolExecutor(THREADS) as threads:
            on_the_way = list(threads.map(_Table.go_on, [table for table in tables if not table.over]))
        if all(table.over for table in tables):
            return [(table.why, table.game.requests) if table.why is not None else None for table in tables]
        server.die([request for request in on_the_way if request is not None])


def wrong(server: Server, case: Case) -> tuple[str, list[str]] | None:
    """What a case finds wrong, and its requests; one whose requests overlap is played several times."""
    times = TRIES if any(step[0] == "and" for step in case.steps) else 1
    return next((found for found in play(server, [case] * times) if found is not None), None)


def smaller(server: Server, case: Case) -> Case:
    """A wrong case without what it does not need."""
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
    """Play the histories of seeds: how many were played at a time, and those that were wrong.

    Args:
        server: the server.
        seeds: of the histories.
        kills: whether processes of the server are killed.
        live: whether stock clients have WebSockets.
        fill_every: of so many seeds one has a gateway with many rows; 0: none.
        overlap_every: of so many seeds one has requests at the same time; 0: none.
        shrink: whether wrong histories are made small.
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
            small = smaller(server, case) if shrink else case
            again = wrong(server, small) or found
            failures.append(Failure(seed, again[0], small, again[1]))
        yield len(some), failures


def found_wrong(server: Server, seeds: Iterable[int], **chosen: Any) -> list[str]:
    """Reports of the histories of these seeds that are wrong, as they were played; options as of `search`."""
    found = search(server, iter(seeds), **{"fill_every": 0, **chosen}, shrink=False)
    return [failure.report() for _, failures in found for failure in failures]
