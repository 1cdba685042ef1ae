"""The `lakesync` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Its modules are imported here, so that importing this package costs nothing."""
    from lakesync.cli.app import app, bypass_proxy, prepare_streams

    prepare_streams()
    bypass_proxy()
    app()
