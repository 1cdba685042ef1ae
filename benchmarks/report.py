"""Computes figures from samples."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from benchmarks.load import Sample
from benchmarks.usage import Usage


def figures(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return work done, rate per second, latencies in milliseconds, and the rates of the first and last tenth."""
    deltas = sum(sample.deltas for sample in samples)
    seconds = max(sample.ended for sample in samples)
    latencies = sorted(sample.seconds * 1000 for sample in samples)
    tenth = max(1, len(samples) // 10)
    return {
        "deltas": deltas,
        "requests": len(samples),
        "seconds": round(seconds, 2),
        "rate": round(deltas / seconds),
        "p50_ms": percentile(latencies, 50),
        "p95_ms": percentile(latencies, 95),
        "p99_ms": percentile(latencies, 99),
        "first_tenth_rate": _rate(samples[:tenth], 0.0),
        "last_tenth_rate": _rate(samples[-tenth:], samples[-tenth - 1].ended if len(samples) > tenth else 0.0),
    }


def usage(used: Usage, deltas: int) -> dict[str, Any]:
    """Return the server's resource usage."""
    own = {name: value for name, value in used._asdict().items() if name != "seconds"}
    return {"cpu_us_per_delta": round(used.cpu_seconds / deltas * 1e6, 1), **own}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile."""
    return round(ordered[max(0, ceil(len(ordered) * percent / 100) - 1)], 2)


def _rate(samples: Sequence[Sample], begun: float) -> int:
    return round(sum(sample.deltas for sample in samples) / max(1e-9, samples[-1].ended - begun))
