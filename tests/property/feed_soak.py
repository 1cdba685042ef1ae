"""Play random histories of many clients against a gateway in the same process.

Each failing history is reduced and printed: add it to tests/property/test_feed_oracle.py as an `@example`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.property.feed_history import History, play
from tests.property.feed_places import histories_over
from tests.property.feed_steps import RULES, skews
from tests.storm_options import script_parser

_BATCH = 100
Case = tuple[list[tuple[Any, ...]], tuple[int, ...], int]


def _failure(case: Case, kind: type[History]) -> str | None:
    """Return the promise that a case breaks; None if it breaks none."""
    history, skewed, rules = case
    try:
        play(history, skewed, rules, kind)
    except Exception as error:  # a wrong client or a defect of the gateway
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {last.name}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _smaller(case: Case, kind: type[History]) -> Case:
    """Return the case without the steps that the failure does not need."""
    history, skewed, rules = case
    for size in (8, 4, 2, 1, 1):
        place = 0
        while place < len(history):
            without = history[:place] + history[place + size :]
            if _failure((without, skewed, rules), kind):
                history = without
            else:
                place += 1
    if _failure((history, (0, 0, 0), rules), kind):
        skewed = (0, 0, 0)
    if _failure((history, skewed, 0), kind):
        rules = 0
    return history, skewed, rules


def _batch(number: int, kind: type[History]) -> tuple[int, list[Case]]:
    """Play a batch; return the number of cases, and those that failed."""
    played = 0
    failed: list[Case] = []

    @seed(number)
    @settings(
        max_examples=_BATCH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(kind.histories, skews, st.integers(0, len(RULES) - 1)))
    def run(case: Case) -> None:
        nonlocal played
        played += 1
        if _failure(case, kind) is not None:
            failed.append(case)

    run()
    return played, failed


def main(arguments: Sequence[str]) -> int:
    """Play batches until the time is over; return the exit code, which is 1 if a case failed."""
    parser = script_parser("scripts/soak", __doc__, "--seconds 600 --seed 1 --over postgres")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first batch (default: 1)")
    parser.add_argument("--failures", type=int, default=3, help="stop after this number of failures (default: 3)")
    parser.add_argument(
        "--over",
        choices=(
            "sqlite",
            "full-disk",
            "sharded",
            "full-shards",
            "postgres",
            "processes",
            "lost-commits",
            "conflicts",
            "rebuilt",
        ),
        default="sqlite",
        help="the store: SQLite or shards, also with a disk that fills up (full-disk, full-shards); Postgres, also "
        "with two processes or lost commits; clients that resolve conflicts as the reference does (conflicts); or a "
        "store that is rebuilt from the lake (rebuilt) (default: sqlite)",
    )
    options = parser.parse_args(arguments)
    cases, number, found = 0, options.seed, 0
    with histories_over(options.over) as kind:
        began = time.monotonic()
        while time.monotonic() - began < options.seconds and found < options.failures:
            played, failed = _batch(number, kind)
            cases += played
            for case in failed[: options.failures - found]:
                found += 1
                small = _smaller(case, kind)
                print(f"seed {number}: {_failure(small, kind) or 'fails only sometimes'}")
                print(f"@example(history={small[0]!r}, skews={small[1]!r}, rules={small[2]!r})", flush=True)
            number += 1
            print(f"{cases} cases, {found} failed, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    seeds = f"seeds {options.seed} to {number - 1}"
    print(f"{options.over}: {cases} cases, {seeds}, {found} failed, {time.process_time():.0f} s of CPU")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
