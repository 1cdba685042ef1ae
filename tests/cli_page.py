"""The examples of docs/cli.md: those in `bash` blocks run unchanged, those in `sh` blocks need a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()


def _blocks() -> dict[str, list[str]]:
    found = {}
    for section in PAGE.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        found[heading] = [
            line for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) for line in block.splitlines()
        ]
    return found


BLOCKS = _blocks()
"""Heading → its lines, in order."""
