"""README, CONTRIBUTING.md and docs/: their links resolve, and their lists are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
LOGIN = sorted((ROOT / "docs" / "login").glob("*.md"))
"""Pages that docs/login.md links to."""
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

HELPERS = {
    f"{name}.py"
    for name in (
        "dagster_pictures",
        "dagster_scene",
        "destinations_picture",
        "conformance_table",
        "coverage_table",
    )
}
"""Modules that scripts run."""


def anchor(heading: str) -> str:
    """The fragment of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def links(page: Path) -> list[tuple[Path, str]]:
    """The files in this repository that a page links to, each with a heading's fragment or an empty string."""
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in target]
    parts = [target.partition("#") for target in targets]
    return [((page.parent / name).resolve() if name else page, fragment) for name, _, fragment in parts]


@pytest.mark.parametrize("page", [README, CONTRIBUTING, *PAGES, *LOGIN, *DECISIONS], ids=lambda page: page.name)
def test_links_resolve(page):
    for target, fragment in links(page):
        assert target.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{target}#{fragment}"


@pytest.mark.parametrize("page", [CONTRIBUTING, *PAGES], ids=lambda page: page.name)
def test_the_readme_links_to_every_page(page):
    assert page in {target for target, _ in links(README)}


def test_the_login_page_links_to_every_provider():
    assert {target for target, _ in links(ROOT / "docs" / "login.md")} >= set(LOGIN)


def test_the_index_links_to_every_decision():
    index = ROOT / "docs" / "decisions" / "README.md"
    assert {target for target, _ in links(index)} == set(DECISIONS) - {index}


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 90


@pytest.mark.parametrize(
    "script", sorted(filter(Path.is_file, (ROOT / "scripts").iterdir())), ids=lambda script: script.name
)
def test_contributing_lists_every_script(script):
    assert script.name in HELPERS or f"`scripts/{script.name}" in CONTRIBUTING.read_text()


def test_the_architecture_page_lists_every_package():
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.parent for path in [*ROOT.glob("*/__init__.py"), *ROOT.glob("lak*/*/__init__.py")]}
    assert len(packages) > 25
    for package in packages:
        assert f"`{package.name}/" in page, package
