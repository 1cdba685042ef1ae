"""The `lakesync` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; nothing is imported before, so that importing this package stays cheap."""
    from lakesync.cli.app import app
    from lakesync.cli.streams import make_ready

    make_ready()
    app()
