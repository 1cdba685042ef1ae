"""The examples of the pages on embedding run, and do what the pages promise."""

from __future__ import annotations

import asyncio
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from starlette.requests import Request

import lakesync
from lakesync.adapters import DatabaseAdapter, LakeAdapter, Materialisable
from lakesync.adapters.sql import Dialect
from lakesync.engine.adapter_gateway import AdapterGateway
from lakesync.flush import FlushSettings
from lakesync.model.types import SyncPull

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "embedding.md").read_text()
AUTHORS = (ROOT / "docs" / "adapters.md").read_text()


def test_the_pages_example_runs_and_its_query_reads_what_it_wrote(tmp_path, monkeypatch):
    program, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "/data/todo-app" in program
    program = program.replace("/data/todo-app", str(tmp_path / "todo-app"))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=280, cwd=tmp_path)
    (query,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    assert duckdb.sql(query).fetchall() == [("todos", "t1", "INSERT", '"Buy oat milk"')]


def test_the_example_of_a_fastapi_application_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("STAGING_URL", "memory://")
    _, program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    names = runpy.run_path(str(tmp_path / "shop.py"))
    app = names["app"]

    async def run() -> None:
        async with app.router.lifespan_context(app):
            request = Request({"type": "http", "app": app})
            assert names["paid"]("o1", request) == {"state": "paid"}
            (delta,) = app.state.gateway.handle_pull(SyncPull("ann", 0)).deltas
            assert (delta.row_id, delta.columns[0].decoded()) == ("o1", "paid")

    asyncio.run(run())


def test_the_example_restores_its_stock_on_the_second_run(tmp_path):
    def run() -> str:
        command = [sys.executable, "-m", "examples.embedded", str(tmp_path / "shop")]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=140).stdout

    first, second = run(), run()
    assert "restored from earlier days: 0 deltas\nscrews in stock: unknown\n" in first
    assert "both tills: {'count': 90, 'shelf': 'A3', 'cents': 15}" in first
    assert first.count("flushed: ") >= 1  # more, if the time between two pushes made a flush due
    assert "restored from earlier days: 2 deltas\nscrews in stock: 90\n" in second
    assert "both tills: {'count': 80, 'shelf': 'A3', 'cents': 14}" in second
    assert second.count("flushed: ") > first.count("flushed: ")


@pytest.mark.parametrize("name", [name for name in vars(AdapterGateway) if not name.startswith("_")])
def test_the_page_names_every_method(name):
    assert f"`{name}(" in PAGE


def test_the_page_names_every_setting_and_argument():
    for name in (*FlushSettings.__struct_fields__, *_arguments()):
        assert f"`{name}`" in PAGE, name


def _arguments() -> list[str]:
    return [name for name in inspect.signature(lakesync.open_gateway).parameters if name not in _SELF_EXPLAINING]


_SELF_EXPLAINING = {"gateway_id", "wall", "on_flushed"}


@pytest.mark.parametrize("protocol", [LakeAdapter, DatabaseAdapter, Materialisable])
def test_the_page_names_every_method_of_an_adapter(protocol):
    methods = [name for name in vars(protocol) if not name.startswith("_") and callable(getattr(protocol, name))]
    assert len(methods) >= 2
    for name in methods:
        assert f"`{name}`" in AUTHORS


def test_a_dialect_has_every_member_that_the_page_names():
    text = next(line for line in AUTHORS.splitlines() if line.startswith("- A `Dialect`"))
    named = set(re.findall(r"`([a-z]\w+)(?: = \w+)?`", text))
    assert len(named) >= 12
    assert named <= vars(Dialect).keys()
