"""What stands below a command's options."""

from __future__ import annotations


def examples(*lines: tuple[str, str]) -> str:
    """Command lines, each with what it is for, in rich's markup."""
    shown = [f"[green]{line}[/]   {purpose}" if purpose else f"[green]{line}[/]" for line, purpose in lines]
    return "\n\n".join(["[bold]Examples[/]", *shown])
