"""Resource usage of processes between two points in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

_SAMPLE_SECONDS = 0.2
_AT_REST = 0.02
"""Processor time per second of an idle process."""
_MIB = 1 << 20


class Usage(NamedTuple):
    """Of one process, or of a family with the sum of their resident memory."""

    seconds: float
    cpu_seconds: float
    rss_begin_mib: float
    rss_end_mib: float
    rss_peak_mib: float


class Shared:
    """Memory of processes and their children; shared pages count once."""

    def __init__(self, *pids: int) -> None:
        """Store the processes.

        Args:
            pids: process ids.
        """
        self._processes = [psutil.Process(pid) for pid in pids]

    @contextmanager
    def measured(self) -> Iterator[list[float]]:
        """Measure the sum at the start of the block and the maximum, in MiB; the list contains both at the end."""
        found: list[float] = []
        samples = [self._pss()]
        with _sampling(lambda: samples.append(self._pss())):
            yield found
        found += [samples[0], max(samples)]

    def _pss(self) -> float:
        everyone = {each.pid: each for one in self._processes for each in (one, *one.children(recursive=True))}
        return round(_sum(everyone.values(), lambda one: one.memory_full_info().pss) / _MIB, 1)


class Watched:
    """A running process that is measured."""

    def __init__(self, pid: int, *, family: bool = False) -> None:
        """Store the process.

        Args:
            pid: the process id.
            family: include its children, also ended ones.
        """
        self.pid = pid
        self._process = psutil.Process(pid)
        self._family = family

    @contextmanager
    def measured(self) -> Iterator[list[Usage]]:
        """Measure the usage inside the block; the list contains it at the end."""
        found: list[Usage] = []
        samples = [self._rss()]
        with _sampling(lambda: samples.append(self._rss())):
            cpu, begun = self._cpu(), time.perf_counter()
            yield found
            seconds, used = time.perf_counter() - begun, self._cpu() - cpu
        samples.append(self._rss())
        found.append(Usage(round(seconds, 2), round(used, 2), samples[0], samples[-1], max(samples)))

    def rest(self, seconds: float, most_seconds: float = 180) -> None:
        """Return when the process has been idle for a while.

        Raises:
            TimeoutError: the process did not become idle.
        """
        ends = time.monotonic() + most_seconds
        while time.monotonic() < ends:
            before = self._cpu()
            time.sleep(seconds)
            if self._cpu() - before < _AT_REST * seconds:
                return
        raise TimeoutError(f"process {self.pid} is still at work after {most_seconds} s")

    def _rss(self) -> float:
        return round(self._sum(lambda one: one.memory_info().rss) / _MIB, 1)

    def _cpu(self) -> float:
        def used(one: psutil.Process) -> float:
            times = one.cpu_times()
            ended = times.children_user + times.children_system if self._family else 0
            return float(times.user + times.system + ended)

        return self._sum(used)

    def _sum(self, ask: Callable[[psutil.Process], float]) -> float:
        return _sum([self._process, *(self._process.children(recursive=True) if self._family else ())], ask)


@contextmanager
def _sampling(sample: Callable[[], object]) -> Iterator[None]:
    """Take samples while the block runs."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            sample()

    sampler = threading.Thread(target=run, daemon=True)
    sampler.start()
    try:
        yield
    finally:
        done.set()
        sampler.join()


def _sum(processes: Iterable[psutil.Process], ask: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for one in processes:
        try:
            total += ask(one)
        except psutil.NoSuchProcess:  # between being listed and being asked
            continue
    return total
