"""Runs the conformance suite of adapters once, and writes docs/conformance.md: a table of results for each test file.

`scripts/conformance-table` runs it.
"""

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
"""The generated page."""
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
"""Id of an adapter in the tests' parameters → heading of its column."""
OBJECTS = {"local disk": "local disk", "s3": "S3 (moto)", "strict s3": "S3 (versitygw)"}
"""The same for the tests of object stores."""
FILES = {
    "test_adapters": ("Deltas", COLUMNS),
    "test_adapter_tables": ("Tables of rows and marks", COLUMNS),
    "test_followers": ("Following the lake", COLUMNS),
    "test_redaction": ("Erasure", COLUMNS),
    "test_adapters_as_sources": ("Pulled from by clients", COLUMNS),
    "test_adapter_failures": ("Failures", COLUMNS),
    "test_adapters_objects": ("Objects", OBJECTS),
}
"""The test files that run with several adapters → the title and the columns of their table."""
HEAD = """# Conformance, adapter by adapter

The results of `tests/conformance` for each adapter in one run. `scripts/conformance-table` runs the tests and writes
this page. MySQL is tested on MariaDB; S3 on moto and, if Go is installed to build it, on versitygw; BigQuery on an
emulator. *composed* is a nesting of all compositions. A number is the count of cases that passed, if there are several.

Why a cell is empty:

- Object stores and compositions have no destination tables of their own. A follower follows each part of a composition.
  `test_adapter_compositions.py` tests what a composition does if a part fails.
- SQLite and the local disk have no server, connections or credentials. Killed processes are tested under *Following*
  and in `test_adapters_crash.py`.
- JSON and Parquet differ only in the encoding of objects. Tests of the object store itself run with Parquet.
- Failures of S3 are tested where they can be caused: versitygw is killed and its disk filled. moto has its objects in
  memory, so it is not.
- The disk of BigQuery cannot be filled.
- Iceberg is read only: `test_adapters_iceberg.py`.

"""


def main() -> int:
    """Run the tests, write the page, and return pytest's exit code: 0 if all passed."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        files = [f"tests/conformance/{name}.py" for name in FILES]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "deep or not deep", f"--junitxml={results}", *files]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        cases = list(ET.parse(results).iter("testcase"))  # noqa: S314 pytest wrote it
    when = f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC, commit {commit.stdout.strip()}: {_totals(cases)}.\n"
    parts = [_file_table(name, title, columns, cases) for name, (title, columns) in FILES.items()]
    PAGE.write_text(HEAD + when + _gaps(cases) + "".join(parts), "utf-8")
    return code


def _file_table(file: str, title: str, columns: dict[str, str], cases: list[ET.Element]) -> str:
    """Return the Markdown table of one test file: a row for each test, a column for each adapter.

    Args:
        file: name of the test file.
        title: title of the table.
        columns: adapter's id → heading.
        cases: all results.
    """
    rows: dict[str, dict[str, Counter[str]]] = {}
    for case in cases:
        test, _, parameters = case.attrib["name"].rstrip("]").partition("[")
        column = next(
            (name for name in columns if re.fullmatch(rf"{re.escape(name)}([-,].*)?", parameters, re.DOTALL)), None
        )
        if column is not None and case.attrib["classname"].endswith(f".{file}"):
            rows.setdefault(test, {}).setdefault(column, Counter())[_outcome(case)] += 1
    lines = [
        f"| {test.removeprefix('test_').replace('_', ' ')} | {_cells(outcomes, columns)} |"
        for test, outcomes in rows.items()
    ]
    head = [f"| | {' | '.join(columns.values())} |", f"|---|{':-:|' * len(columns)}"]
    return "\n".join([f"\n## {title}", f"`tests/conformance/{file}.py`", "", *head, *lines, ""])


def _cells(outcomes: dict[str, Counter[str]], columns: dict[str, str]) -> str:
    """Return the cells of a test's row; `outcomes` are the numbers of its outcomes by adapter."""
    return " | ".join(_cell(outcomes.get(name)) for name in columns)


def _cell(outcomes: Counter[str] | None) -> str:
    """Return the cell of a test and an adapter: a tick if all cases passed, else what the others did."""
    if outcomes is None:
        return ""
    if outcomes.keys() == {"passed"}:
        return "✓" if outcomes.total() == 1 else f"✓ {outcomes.total()}"
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != "passed")


def _totals(cases: list[ET.Element]) -> str:
    """Return the number of cases by outcome, as a part of a sentence."""
    outcomes = Counter(map(_outcome, cases))
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())


def _outcome(case: ET.Element) -> str:
    """Return the outcome of a case: `passed`, `failed`, `skipped` or `expected failure`."""
    kinds = {child.tag: child for child in case}
    if kinds.keys() & {"failure", "error"}:
        return "failed"
    if "skipped" not in kinds:
        return "passed"
    return "expected failure" if kinds["skipped"].get("type") == "pytest.xfail" else "skipped"


def _gaps(cases: list[ET.Element]) -> str:
    """Return a list of the cases that were skipped or failed as expected, with the reasons."""
    lines = [
        f"- `{case.attrib['name']}`: {_outcome(case)}, {child.get('message')}.\n"
        for case in cases
        for child in case.iter("skipped")
    ]
    return "".join(["\n", *lines]) if lines else ""


if __name__ == "__main__":
    sys.exit(main())
