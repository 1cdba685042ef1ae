"""What stands below a command's options."""

from __future__ import annotations


def examples(*lines: tuple[str, str]) -> str:
    """Command lines that can be pasted, each with what it is for as a comment; a paragraph each."""
    shown = (f"  {line}   # {purpose}" if purpose else f"  {line}" for line, purpose in lines)
    return "\n\n".join(["Examples:", *shown])
