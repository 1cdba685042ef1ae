"""Poll sources that change, fail and hide rows at random, and kill polls.

Each seed is one history. A seed that breaks a rule is printed: add it to the test as an `@example`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import stamina.instrumentation

from tests.property import test_jira_polls, test_landed_files, test_salesforce_polls
from tests.storm_options import script_parser

Case = Callable[[int], None]


def _ways(test: Any, values: Sequence[object]) -> list[Case]:
    """A property test with each of its parameters, by seed."""
    return [partial(_play, test.hypothesis.inner_test, value) for value in values]


def _play(test: Callable[[int, object], None], value: object, seed: int) -> None:
    test(seed, value)


class _Folders:
    """Replaces the fixture `tmp_path_factory`; each folder is removed when the next one is made."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def mktemp(self, _: str) -> Path:
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = tempfile.TemporaryDirectory()
        return Path(self._folder.name)


_FOLDERS = _Folders()


def _landed(identity: str | None, claimed: tuple[str, ...], parts: int, seed: int) -> None:
    test_landed_files.test_changes_read_from_files_equal_the_diff.hypothesis.inner_test(
        _FOLDERS, identity, claimed, seed, parts
    )


CASES: dict[str, list[Case]] = {
    "jira": _ways(test_jira_polls.test_after_the_last_poll_the_rows_equal_the_site, (0, 5_000, 60_000)),
    "salesforce": _ways(test_salesforce_polls.test_after_the_last_poll_the_rows_equal_the_organisation, (False, True)),
    "landed": [
        partial(_landed, identity, claimed, parts)
        for identity, claimed in (("uid", ("of", "uid")), (None, ("of",)), (None, ()))
        for parts in (1, 3)
    ],
}
"""The cases of each seed, by vendor, and for the files of landings."""


def main(arguments: Sequence[str]) -> int:
    """Play seeds until the time is over; return the exit code, which is 1 if one failed."""
    parser = script_parser("scripts/poll-storm", __doc__, "--seconds 600 --seed 1 --of jira")
    parser.add_argument("--seconds", type=float, default=300.0, help="duration (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--of", choices=[*CASES, "all"], default="all", help="kind of source (default: all)")
    options = parser.parse_args(arguments)
    cases = [(name, case) for name in CASES if options.of in (name, "all") for case in CASES[name]]
    stamina.instrumentation.set_on_retry_hooks([])
    until, played, failed = time.monotonic() + options.seconds, 0, 0
    for number, (name, case) in enumerate(cycle(cases)):
        if time.monotonic() > until:
            break
        seed, way = options.seed + number // len(cases), number % len(cases)
        played += 1
        try:
            case(seed)
        except Exception:
            failed += 1
            print(f"{name}, seed {seed}, way {way}:\n{traceback.format_exc(limit=-4)}", flush=True)
    print(f"{played} played, seeds {options.seed} to {options.seed + (played - 1) // len(cases)}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
