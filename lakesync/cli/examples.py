"""What stands below a command's options."""

from __future__ import annotations


def examples(*lines: tuple[str, str]) -> str:
    """Command lines, each with what it is for; a paragraph each."""
    return "\n\n".join(["Examples:", *(f"  {line}   {purpose}" if purpose else f"  {line}" for line, purpose in lines)])
