"""docs/spec.md lists every promise, and names existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NUMBERS = {"M": 5, "P": 9, "L": 11, "R": 8, "W": 4, "K": 3, "B": 11, "D": 9, "H": 9, "A": 8, "C": 11, "T": 5}
DEEP = "pytest.mark.deep"
ROW = re.compile(rf"^\| ([{''.join(NUMBERS)}]\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def _rows() -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / "docs" / "spec.md").read_text())


@cache
def _tests(path: str) -> dict[str, bool]:
    """The test functions of a file, and whether only `scripts/deep` runs them."""
    tree = ast.parse((ROOT / path).read_text())
    whole_file = any("pytestmark" in line and DEEP in line for line in map(ast.unparse, tree.body))
    return {
        node.name: whole_file or DEEP in map(ast.unparse, node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_promise_is_listed_once() -> None:
    assert [number for number, _, _ in _rows()] == [
        f"{letter}{number}" for letter, count in NUMBERS.items() for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(("number", "held_by"), [(number, held_by) for number, _, held_by in _rows()])
def test_every_promise_names_a_test_of_the_suite_or_is_marked_as_not_built(number: str, held_by: str) -> None:
    if held_by.startswith("not built yet: "):
        return
    names = re.findall(r"`(tests/[^`]+)`", held_by)
    assert names, number
    for name in names:
        path, _, function = name.partition("::")
        assert function, f"{number} names a file, not a test: {name}"
        assert function in _tests(path), f"{number} names {name}"
        assert not _tests(path)[function], f"{number} names {name}, which only scripts/deep runs"
