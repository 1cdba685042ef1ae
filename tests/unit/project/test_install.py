"""scripts/install chooses the newest supported Python, or the one in the variable PYTHON, and rejects others."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("bash", "cat", "cut", "dirname", "env", "flock", "rm", "sed", "sha256sum", "sort", "tr")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that scripts/install reads before it creates an environment, and a PATH without Python."""
    folder = tmp_path / "checkout"
    for name in ("scripts/install", "pyproject.toml", "lakesync/cli/up/jars.py", "requirements/platform.lock"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return folder


def put_python(folder: Path, name: str, version: str, *, venv: bool = True) -> None:
    """Put a program on the PATH that reports this Python version, and fails to create an environment."""
    program = folder / name
    has_venv = "exit 0" if venv else "exit 1"
    program.write_text(
        '#!/usr/bin/env bash\ncase "$*" in\n'
        f"  *version_info*) echo {version} ;;\n  *ensurepip*) {has_venv} ;;\n  --version) echo Python {version} ;;\n"
        "  *) exit 1 ;;\nesac\n"
    )
    program.chmod(0o755)


def install(checkout: Path, **environment: str) -> str:
    """The output of scripts/install before it fails."""
    run = subprocess.run(
        ["bash", "scripts/install"],
        cwd=checkout,
        env={"PATH": str(checkout.parent / "bin"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 1
    return run.stderr


def test_a_missing_python_is_reported(checkout):
    assert "LakeSync needs Python 3.14, 3.13, 3.12, 3.11 with its venv module and found none" in install(checkout)


def test_the_newest_supported_python_is_used(checkout):
    programs = checkout.parent / "bin"
    put_python(programs, "python3.14", "3.14", venv=False)
    put_python(programs, "python3.11", "3.11")
    put_python(programs, "python3.13", "3.13")
    put_python(programs, "python3", "3.15")
    assert "python3.13 -m venv failed" in install(checkout)


def test_an_unsupported_python3_is_skipped(checkout):
    put_python(checkout.parent / "bin", "python3", "3.10")
    put_python(checkout.parent / "bin", "python", "3.12")
    assert "making .venv with Python 3.12" in install(checkout)


def test_the_requested_python_is_used(checkout):
    put_python(checkout.parent / "bin", "python3.14", "3.14")
    put_python(checkout.parent, "mine", "3.12")
    assert "making .venv with Python 3.12" in install(checkout, PYTHON=str(checkout.parent / "mine"))


def test_a_requested_unsupported_python_is_rejected(checkout):
    put_python(checkout.parent / "bin", "python3.14", "3.14")
    put_python(checkout.parent, "mine", "3.10")
    output = install(checkout, PYTHON=str(checkout.parent / "mine"))
    assert "mine does not run a supported Python (found: 3.10); LakeSync supports 3.14" in output


def test_the_tests_for_other_pythons_exist():
    listed = re.search(r"^tests=\((.*?)^\)", (ROOT / "scripts/test-pythons").read_text(), re.MULTILINE | re.DOTALL)
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(listed[1].split())}"]
    paths = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_files_of_the_table_of_conformance_exist():
    text = (ROOT / "scripts" / "conformance_table.py").read_text()
    listed = re.findall(r'^    "(test_\w+)": \(', text, re.MULTILINE)
    assert len(listed) > 5
    assert [name for name in listed if not (ROOT / "tests" / "conformance" / f"{name}.py").exists()] == []
