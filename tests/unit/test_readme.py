"""A newcomer's way in is true: README and pages name what there is, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from lakesync.cli.app import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").glob("*.md"))

FOR_MAINTAINERS = {
    *("lock", "screenshot-lineage", "screenshots.py"),
    *("dagster-pictures", "dagster_pictures.py", "dagster_scene.py"),
    *("destinations-picture", "destinations_picture.py", "conformance_table.py"),
}


def anchor(heading: str) -> str:
    """The fragment that a heading gets."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_readme_leads_to_every_page(page):
    assert f"(docs/{page.name})" in README


def test_the_readme_names_every_command():
    commands = typer.main.get_command(app).commands
    assert commands
    for name in commands:
        assert f"`lakesync {name}" in README


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").iterdir()), ids=lambda script: script.name)
def test_the_readme_names_every_script(script):
    assert script.name in FOR_MAINTAINERS or f"scripts/{script.name}" in README


def test_the_readme_names_every_room():
    rooms = {path.parent for path in [*ROOT.glob("*/__init__.py"), *ROOT.glob("lakesync/*/__init__.py")]}
    assert len(rooms) > 15
    for room in rooms:
        assert f"`{room.name}/" in README
