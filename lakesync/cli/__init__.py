"""The `lakesync` command."""


def main() -> None:
    """Run the command line; the commands are imported only now, so that importing this package stays cheap."""
    from lakesync.cli.app import app

    app()
