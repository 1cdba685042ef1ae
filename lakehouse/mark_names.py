"""Names of the pipeline's marks: small texts in staging that say how far a part of the pipeline is.

Assets write the marks, sensors compare them.
"""


def poll_mark(gateway: str, connector: str) -> str:
    """Return the name of the mark with the time at which the last poll of a connector began.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
    """
    return f"ingest/{gateway}/{connector}"


def failed_polls_mark(gateway: str, connector: str) -> str:
    """Return the name of the mark with the tables of a connector whose latest poll failed.

    Args:
        gateway: id of the connector's gateway.
        connector: the connector's name.
    """
    return f"failed-polls/{gateway}/{connector}"


def move_mark(group: str, name: str) -> str:
    """Return the name of the mark of a flow, of tiers or of a migration.

    For flows and tiers its value is the time at which the last successful run began, for a migration the copied days.

    Args:
        group: `flows`, `tiers` or `migrations`.
        name: name of the flow, tiers or migration in `lakesync.toml`.
    """
    return f"{group}/{name}"


def destination_mark(destination: str, adapter: str) -> str:
    """Return the name of the mark that says how far one adapter of a destination is written.

    The mark at the adapter counts. Staging has a copy for the sensors.

    Args:
        destination: the destination's name in `lakesync.toml`.
        adapter: the adapter's name.
    """
    return f"destinations/{destination}/{adapter}"


def audit_mark(asset: str) -> str:
    """Return the name of the mark with an asset's state when an audit last found no fault, and when that was.

    Args:
        asset: the asset's key as text, with slashes.
    """
    return f"audit/{asset}"


def maintenance_mark(part: str) -> str:
    """Return the name of the mark with the state of a table, or of the log, at its last maintenance, and when that was.

    Args:
        part: the partition of the asset `maintenance`.
    """
    return f"maintenance/{part}"
