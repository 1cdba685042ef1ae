"""The form of `--help` that the storm and soak scripts share."""

from __future__ import annotations

import argparse


def script_parser(name: str, description: str | None, example: str) -> argparse.ArgumentParser:
    """Return a parser whose help keeps the line breaks of the description and ends with an example to paste.

    Args:
        name: the script's path with fixed options, such as `scripts/soak --blackbox`.
        description: the module's docstring.
        example: the options of the example.
    """
    return argparse.ArgumentParser(
        prog=name,
        description=description,
        epilog=f"example: {name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
