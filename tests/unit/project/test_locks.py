"""The lock files have only names, versions and hashes of packages, and no registry or machine."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
LINE = re.compile(
    r"""
    \#.*                                              # a comment of uv's
    | [a-z0-9][a-z0-9._-]*(\[[a-z0-9,-]+\])?==[^ ]+   # name==version
      (\ ;\ [^\\]+)?\ \\                              # for which machines
    | \ {4}--hash=sha256:[0-9a-f]{64}(\ \\)?
    """,
    re.VERBOSE,
)


def test_every_group_has_a_lock_file():
    assert {lock.stem for lock in LOCKS} == {"demo", "dev", "other-reader", "platform", "servers", "uv"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_file_has_only_names_versions_and_hashes(lock):
    text = lock.read_text()
    assert not re.search(r"[a-z]+://|--(extra-)?index|--find-links|/root|/home|/work", text)
    for line in text.splitlines():
        assert LINE.fullmatch(line), line


def test_a_package_has_one_version_in_all_locks():
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        if lock.stem in {"other-reader", "servers"}:  # in separate environments
            continue
        for name, version in re.findall(r"^([a-z0-9._-]+)==([^ ]+)", lock.read_text(), re.MULTILINE):
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_every_list_of_supported_pythons_is_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [int(name.removeprefix(prefix)) for name in project["classifiers"] if name.startswith(prefix)]
    pythons = [f"3.{minor}" for minor in minors]
    assert project["requires-python"] == f">=3.{minors[0]},<3.{minors[-1] + 1}"
    install, lock = ((ROOT / "scripts" / name).read_text() for name in ("install", "lock"))
    assert re.search(r'^pythons="([^"]+)"', install, re.MULTILINE)[1].split() == pythons[::-1]
    assert re.search(r"^for version in (.+); do", lock, re.MULTILINE)[1].split() == pythons
    assert f"--universal --python-version {pythons[0]} " in lock
