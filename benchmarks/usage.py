"""Measures processor time and memory of processes during a `with` block. `server` and `lake` call it for benchmarks.

The context managers yield an empty list, which has the measurement after the block.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import psutil

_SAMPLE_SECONDS = 0.2
"""Seconds between two samples of the memory."""
_IDLE_CPU_SHARE = 0.02
"""A process that uses less processor time per second is idle."""
_MIB = 1 << 20


class Usage(NamedTuple):
    """The usage of a process, or the sum of a process and its children."""

    seconds: float
    """Duration of the measurement."""
    cpu_seconds: float
    """Processor time of all threads."""
    rss_begin_mib: float
    """Resident memory at the start; of several processes shared pages count several times."""
    rss_end_mib: float
    """Resident memory at the end."""
    rss_peak_mib: float
    """The greatest of the samples of resident memory."""


def sum_of(usages: Sequence[Usage]) -> Usage:
    """Return the usage of several processes together, which were measured at the same time.

    Args:
        usages: one for each process, at least one.
    """
    seconds = max(usage.seconds for usage in usages)
    cpu, *memory = (round(sum(values), 2) for values in zip(*[usage[1:] for usage in usages], strict=True))
    return Usage(seconds, cpu, *memory)


class SharedMemory:
    """Memory of processes and their children, in which pages that they share count once."""

    def __init__(self, *pids: int) -> None:
        """Store the processes.

        Args:
            pids: process ids.
        """
        self._processes = [psutil.Process(pid) for pid in pids]

    @contextmanager
    def measure(self) -> Iterator[list[float]]:
        """Measure the memory in MiB. After the block the list contains its value at the start, and the peak."""
        found: list[float] = []
        samples = [self._pss()]
        with _sampling(lambda: samples.append(self._pss())):
            yield found
        found += [samples[0], max(samples)]

    def _pss(self) -> float:
        """Return the memory in MiB, with each shared page divided by the number of its users."""
        processes = {each.pid: each for one in self._processes for each in (one, *one.children(recursive=True))}
        return round(_sum(processes.values(), lambda process: process.memory_full_info().pss) / _MIB, 1)


class MeasuredProcess:
    """A running process, alone or with its children."""

    def __init__(self, pid: int, *, family: bool = False) -> None:
        """Store the process.

        Args:
            pid: the process id.
            family: whether to include the process's children, also those that have ended.
        """
        self.pid = pid
        self._process = psutil.Process(pid)
        self._family = family

    @contextmanager
    def measure(self) -> Iterator[list[Usage]]:
        """Measure the usage during the block; the list contains it after the block."""
        found: list[Usage] = []
        samples = [self._rss()]
        with _sampling(lambda: samples.append(self._rss())):
            cpu, begun = self._cpu(), time.perf_counter()
            yield found
            seconds, used = time.perf_counter() - begun, self._cpu() - cpu
        samples.append(self._rss())
        found.append(Usage(round(seconds, 2), round(used, 2), samples[0], samples[-1], max(samples)))

    def wait_idle(self, seconds: float, timeout: float = 180) -> None:
        """Wait until the process has been idle for some time.

        Args:
            seconds: for how long the process must be idle.
            timeout: seconds to wait, at most.

        Raises:
            TimeoutError: the process did not become idle in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            before = self._cpu()
            time.sleep(seconds)
            if self._cpu() - before < _IDLE_CPU_SHARE * seconds:
                return
        raise TimeoutError(f"process {self.pid} is not idle after {timeout} s")

    def _rss(self) -> float:
        """Return the resident memory in MiB."""
        return round(self._sum(lambda one: one.memory_info().rss) / _MIB, 1)

    def _cpu(self) -> float:
        """Return the processor seconds so far."""

        def used(one: psutil.Process) -> float:
            times = one.cpu_times()
            ended = times.children_user + times.children_system if self._family else 0
            return float(times.user + times.system + ended)

        return self._sum(used)

    def _sum(self, value_of: Callable[[psutil.Process], float]) -> float:
        """Add up a value of the process and, with `family`, of its children."""
        return _sum([self._process, *(self._process.children(recursive=True) if self._family else ())], value_of)


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


def _sum(processes: Iterable[psutil.Process], value_of: Callable[[psutil.Process], float]) -> float:
    """Add up a value of several processes. A process that has just ended counts as 0."""
    total = 0.0
    for process in processes:
        try:
            total += value_of(process)
        except psutil.NoSuchProcess:
            continue
    return total
