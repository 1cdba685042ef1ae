"""The `lakesync` command."""

import sys


def main() -> None:
    """Run the command line; the commands are imported only now, so that importing this package stays cheap."""
    from lakesync.cli.app import app
    from lakesync.exceptions import LakeSyncError

    try:
        app()
    except LakeSyncError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
