"""The conformance suite of the adapters, run once, and what it found as a table in docs/conformance.md."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "conformance.md"
COLUMNS = {
    "sqlite": "SQLite",
    "postgres": "Postgres",
    "mariadb": "MariaDB",
    "bigquery": "BigQuery",
    "nested": "composed",
    "parquet on local disk": "Parquet, disk",
    "json on local disk": "JSON, disk",
    "parquet on s3": "Parquet, S3 (moto)",
    "parquet on strict s3": "Parquet, S3 (versitygw)",
}
OBJECTS = {"local disk": "local disk", "s3": "S3 (moto)", "strict s3": "S3 (versitygw)"}
FILES = {
    "test_adapters": ("Deltas", COLUMNS),
    "test_adapter_tables": ("Tables of rows and marks", COLUMNS),
    "test_followers": ("Following the lake", COLUMNS),
    "test_redaction": ("Erasure", COLUMNS),
    "test_adapters_as_sources": ("Pulled from by clients", COLUMNS),
    "test_adapter_failures": ("Failures", COLUMNS),
    "test_adapters_objects": ("Objects", OBJECTS),
}
"""The files of the suite that run over several adapters."""
HEAD = """# Conformance, adapter by adapter

What `tests/conformance` found of each adapter in one run: `scripts/conformance-table` runs it and writes this page.
MySQL is tested on MariaDB, S3 on moto and, where there is Go to build it, versitygw, BigQuery on an emulator;
*composed* is every composition, one within another. A number is how many cases passed where there are several.

Why a place is empty:

- Object stores and compositions keep no tables of rows of their own, and whoever follows follows each part of a
  composition by itself. What compositions do when a part fails is in `test_adapter_compositions.py`.
- SQLite and the local disk have no server, connections or credentials; a process that dies over them is under
  *Following* and in `test_adapters_crash.py`.
- JSON differs from Parquet by how an object is spelled: what is the store's is shown with Parquet.
- S3's failures are shown where they can be made: moto keeps its objects in memory, so its server is not killed, nor its
  disk filled; versitygw is.
- BigQuery's disk is Google's.
- Iceberg is read only: `test_adapters_iceberg.py`.

"""


def main() -> int:
    """Run, and write; as pytest, 0 where all passed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.xml"
        files = [f"tests/conformance/{name}.py" for name in FILES]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "deep or not deep", f"--junitxml={found}", *files]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        cases = list(ET.parse(found).iter("testcase"))  # noqa: S314 pytest wrote it
    when = f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC, commit {commit.stdout.strip()}: {_sum(cases)}.\n"
    parts = [_part(name, title, columns, cases) for name, (title, columns) in FILES.items()]
    PAGE.write_text(HEAD + when + _gaps(cases) + "".join(parts), "utf-8")
    return code


def _part(file: str, title: str, columns: dict[str, str], cases: list[ET.Element]) -> str:
    """One file's tests, those that run over named adapters."""
    rows: dict[str, dict[str, Counter[str]]] = {}
    for case in cases:
        test, _, given = case.attrib["name"].rstrip("]").partition("[")
        column = next(
            (name for name in columns if re.fullmatch(rf"{re.escape(name)}([-,].*)?", given, re.DOTALL)), None
        )
        if column is not None and case.attrib["classname"].endswith(f".{file}"):
            rows.setdefault(test, {}).setdefault(column, Counter())[_outcome(case)] += 1
    lines = [
        f"| {test.removeprefix('test_').replace('_', ' ')} | {_cells(found, columns)} |" for test, found in rows.items()
    ]
    head = [f"| | {' | '.join(columns.values())} |", f"|---|{':-:|' * len(columns)}"]
    return "\n".join([f"\n## {title}", f"`tests/conformance/{file}.py`", "", *head, *lines, ""])


def _cells(found: dict[str, Counter[str]], columns: dict[str, str]) -> str:
    return " | ".join(_cell(found.get(name)) for name in columns)


def _cell(outcomes: Counter[str] | None) -> str:
    if outcomes is None:
        return ""
    if outcomes.keys() == {"passed"}:
        return "✓" if outcomes.total() == 1 else f"✓ {outcomes.total()}"
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != "passed")


def _sum(cases: list[ET.Element]) -> str:
    found = Counter(map(_outcome, cases))
    return ", ".join(f"{count} {outcome}" for outcome, count in found.items())


def _outcome(case: ET.Element) -> str:
    kinds = {child.tag: child for child in case}
    if kinds.keys() & {"failure", "error"}:
        return "failed"
    if "skipped" not in kinds:
        return "passed"
    return "expected failure" if kinds["skipped"].get("type") == "pytest.xfail" else "skipped"


def _gaps(cases: list[ET.Element]) -> str:
    """Why cases were left out, or fail as is known."""
    told = [
        f"- `{case.attrib['name']}`: {_outcome(case)}, {child.get('message')}.\n"
        for case in cases
        for child in case.iter("skipped")
    ]
    return "".join(["\n", *told]) if told else ""


if __name__ == "__main__":
    sys.exit(main())
