"""The promises and their tests know each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERS = {"M": 5, "P": 9, "L": 11, "R": 8, "W": 4, "K": 3, "B": 7, "H": 7, "A": 5, "C": 6}
ROW = re.compile(r"^\| ([MPLRWKBHAC]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def _rows() -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / "docs" / "spec.md").read_text())


def test_every_promise_is_listed_once() -> None:
    assert [number for number, _, _ in _rows()] == [
        f"{letter}{number}" for letter, count in NUMBERS.items() for number in range(1, count + 1)
    ]


def test_every_promise_names_a_test_or_says_that_it_is_not_built() -> None:
    for number, _, held_by in _rows():
        if held_by.startswith("not built yet: "):
            continue
        names = re.findall(r"`(tests/[^`]+)`", held_by)
        assert names, number
        for name in names:
            path, _, function = name.partition("::")
            text = (ROOT / path).read_text()
            assert function, f"{number} names a file, not a test: {name}"
            assert f"def {function}(" in text, f"{number} names {name}"
