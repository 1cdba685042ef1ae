"""Names of the pipeline's marks in staging. Assets write these marks, sensors compare them."""


def poll_mark(gateway: str, connector: str) -> str:
    """Return the name of a connector's mark: when the last poll of its tables began.

    Args:
        gateway: the connector's gateway.
        connector: the connector's name.
    """
    return f"ingest/{gateway}/{connector}"


def failed_polls_mark(gateway: str, connector: str) -> str:
    """Return the name of the mark that has a connector's failing tables.

    Args:
        gateway: the connector's gateway.
        connector: the connector's name.
    """
    return f"failed-polls/{gateway}/{connector}"


def move_mark(group: str, name: str) -> str:
    """Return the name of a flow's, tiers' or migration's mark.

    Of flows and tiers: when the last successful run began. Of a migration: the days that were copied.

    Args:
        group: `flows`, `tiers` or `migrations`.
        name: the name in `lakesync.toml`.
    """
    return f"{group}/{name}"


def destination_mark(destination: str, adapter: str) -> str:
    """Return the name of the mark of one adapter of a destination, in staging and at the adapter.

    Args:
        destination: the name in `lakesync.toml`.
        adapter: the adapter that is written.
    """
    return f"destinations/{destination}/{adapter}"


def audit_mark(asset: str) -> str:
    """Return the name of an asset's mark: its state when an audit last found no fault, and when that was.

    Args:
        asset: the asset's key as text, with slashes.
    """
    return f"audit/{asset}"


def maintenance_mark(part: str) -> str:
    """Return the name of a part's mark: its state at its last maintenance, and when that was.

    Args:
        part: the partition of the asset `maintenance`.
    """
    return f"maintenance/{part}"
