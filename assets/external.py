"""External assets: tables in the clients' databases, and the gateways' log, which clients push to."""

import dagster as dg

from assets.asset_metadata import LOG, OWNERS, client_key
from assets.columns import client_columns
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.config import Config
from resources.uris import staging_uri


def sources(snapshot: SchemaSnapshot, config: Config) -> list[dg.AssetSpec]:
    """Create an external asset for each synced table, and one for the log that all of them are pushed to.

    Args:
        snapshot: names the tables and their gateways.
        config: names the staging store.
    """
    clients = [
        dg.AssetSpec(
            client_key(schema.table),
            description=f"The table `{schema.table}` in the clients' own databases, edited offline and pushed.",
            group_name="clients",
            kinds={"sqlite", "client"},
            owners=OWNERS,
            metadata={
                "dagster/column_schema": client_columns(schema),
                "gateways": list(snapshot.gateways.get(schema.table, ())),
            },
        )
        for schema in snapshot.tables
    ]
    log = dg.AssetSpec(
        LOG,
        deps=[spec.key for spec in clients],
        description="Acknowledged deltas in the gateway's staging log that wait for the lake.",
        group_name="gateway",
        kinds={"lakesync", "log"},
        owners=OWNERS,
        metadata={"dagster/uri": staging_uri(config)},
    )
    return [*clients, log]
