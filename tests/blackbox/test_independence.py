"""The oracle shares no code with the project that it checks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROJECT = {each.parent.name for each in HERE.parents[1].glob("*/__init__.py")} - {"tests"}


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_a_module_imports_nothing_of_the_project(path):
    assert {"lakesync", "gateway", "lakehouse"} <= PROJECT
    imported = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {name for name in imported if name.split(".")[0] in PROJECT}
    assert all(name.startswith("tests.blackbox") for name in imported if name.split(".")[0] == "tests")
