"""Measures the statements that tests without servers execute, and writes a row for each package to docs/tests.md.

`scripts/coverage` runs it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tests.md"
"""The page with the table."""
PACKAGES = ["lakesync", "gateway", "lakehouse", "resources", "assets", "sensors", "lakesync_dagster"]
"""The packages whose statements are counted."""
FOLDERS = ["tests/unit", "tests/property", "tests/conformance"]
"""The test folders that run by default."""
SERVERS = ["postgres", "mariadb", "bigquery", "s3"]
"""Tests with one of these words in their name or parameters are left out."""
DIVIDED = {"lakesync", "lakehouse"}
"""Packages with a row for each package inside."""
TABLE = re.compile(r"(?<=<!-- scripts/coverage writes from here -->\n).*(?=<!-- to here -->)", re.DOTALL)
"""The table's place in the page."""


def main(folders: list[str]) -> int:
    """Run the tests of some folders, and write the table if all pass.

    Returns:
        pytest's exit code.
    """
    files = [
        str(file.relative_to(ROOT))
        for folder in folders
        for file in sorted((ROOT / folder).rglob("test_*.py"))
        if "spark_server" not in file.read_text("utf-8")  # tests with this fixture start Spark
    ]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COVERAGE_FILE": f"{folder}/coverage"}
        coverage = [sys.executable, "-m", "coverage"]
        run = [*coverage, "run", f"--source={','.join(PACKAGES)}", "--omit=*_pb2.py"]
        tests = ["-m", "pytest", "-q", "-k", " and ".join(f"not {server}" for server in SERVERS), *files]
        code = subprocess.run([*run, *tests], cwd=ROOT, env=environment, check=False).returncode
        if code:
            return code
        report = f"{folder}/coverage.json"
        subprocess.run([*coverage, "json", "-q", "-o", report], cwd=ROOT, env=environment, check=True)
        sections = json.loads(Path(report).read_text("utf-8"))["files"]
    page = PAGE.read_text("utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(sections, folders), page), "utf-8")
    return 0


def table(sections: dict[str, dict[str, dict[str, int]]], folders: list[str]) -> str:
    """Return the Markdown table of a report.

    Args:
        sections: file, relative to the checkout → its section of `coverage json`.
        folders: the test folders that ran.
    """
    statements: dict[str, int] = defaultdict(int)
    covered: dict[str, int] = defaultdict(int)
    for file, section in sections.items():
        package = package_of(file)
        statements[package] += section["summary"]["num_statements"]
        covered[package] += section["summary"]["covered_lines"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    lines = [
        f"Measured on {datetime.now(UTC):%d %B %Y}, commit {commit.stdout.strip()}, with {' '.join(folders)}.",
        "",
        "| package | statements | covered |",
        "|---|--:|--:|",
        *(row(package, statements[package], covered[package]) for package in sorted(statements, key=order)),
        row("all", sum(statements.values()), sum(covered.values())),
    ]
    return "\n".join([*lines, ""])


def package_of(file: str) -> str:
    """Return the package of a file that has a row: `lakesync/engine` for `lakesync/engine/checks.py`."""
    first, *inside = Path(file).parts[:-1]
    return f"{first}/{inside[0]}" if first in DIVIDED and inside else first


def order(package: str) -> tuple[int, str]:
    """Return the key that sorts packages as `PACKAGES` lists them."""
    return PACKAGES.index(package.partition("/")[0]), package


def row(package: str, statements: int, covered: int) -> str:
    """Return a row of the table, with the covered share in per cent, rounded down."""
    return f"| `{package}` | {statements:,} | {100 * covered // max(1, statements)} % |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or FOLDERS))
