"""The sections of `lakesync.toml` about the lake and its pipeline: each setting with its type, default and meaning.

`Config` (settings.py) contains them. The docstring below a setting is its description in docs/configuration.md.

A *gateway* is one app's stream of changes. Clients push their *deltas* (changes of rows) to the *staging* store. The
pipeline, which Dagster runs, *flushes* them to the *lake*: the Iceberg tables `deltas`, with every delta, and a *state
table* with the current rows of each table. A *checkpoint* is a copy of all rows of a gateway, from which new clients
start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, model_validator

from lakesync.config.sections import Port, Section, Texts

_MIB = 1 << 20
"""Bytes in a mebibyte."""


class LakeSection(Section):
    """`[lake]`: the Iceberg catalogue and the location of its tables."""

    catalog: str = "lake"
    """Name of the catalogue in Spark and pyiceberg."""
    catalog_uri: str = ""
    """`sqlite:////ABSOLUTE/FILE`, `postgresql://…`, or `http(s)://…` (REST); empty: SQLite in the data folder."""
    warehouse: str = ""
    """`file:///ABSOLUTE/FOLDER` or `s3://BUCKET/PREFIX`; empty: a folder in the data folder. Existing tables stay where
    they are; new ones are created here."""
    system_namespace: str = "lakesync"
    """Namespace of the tables `deltas`, `rejected` and `gateways`."""
    namespace: str = "tables"
    """Namespace of the state tables that gateways share."""
    checkpoints: str = ""
    """Folder or `s3://BUCKET/PREFIX` for checkpoint frames; empty: a folder in the data folder. Gateway and Spark find
    S3 by the AWS variables."""


class SparkSection(Section):
    """`[spark]`: the embedded Spark Connect server, or the address of another one."""

    remote: str | None = None
    """`sc://HOST:PORT` of an external Spark Connect server; if set, `lakesync up` starts no Spark."""
    master: Annotated[str, Field(pattern=r"^(spark|k8s)://.+$|^yarn$")] | None = None
    """Spark master of a cluster whose executors do the work instead of local cores. They cannot read local folders."""
    port: Port = 0
    """Port of the embedded server; 0: any free port."""
    ui_port: Port = 0
    """Port of the embedded server's web UI, on loopback; 0: any free port."""
    ui_url: str | None = None
    """URL of Spark's web UI; `lakesync up` sets it for the embedded server."""
    token: SecretStr | None = None
    """Pre-shared token of Spark Connect; `lakesync up` generates one for the embedded server."""
    memory: Annotated[str, Field(pattern=r"^[0-9]+[mg]$")] = "2g"
    """Heap of the embedded server, as `512m` or `2g`."""
    cores: PositiveInt | Literal["*"] = 2
    """Cores that the embedded server uses; `*`: all."""
    settings: dict[str, str] = {}  # noqa: RUF012 pydantic copies it
    """Further `spark.…` settings of the embedded server, passed on unchanged."""

    @property
    def address(self) -> str | None:
        """The address of Spark Connect as `sc://HOST:PORT`; None if no Spark is configured."""
        return self.remote or (f"sc://localhost:{self.port}" if self.port else None)


class DagsterSection(Section):
    """`[dagster]`: the pipeline's daemon and web UI."""

    home: Path = Path()
    """`DAGSTER_HOME`; empty: a folder in the data folder. A `dagster.yaml` in it that `lakesync` did not write is used
    unchanged."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address that the web UI listens on. It asks for no password."""
    port: Port = 3000
    """Port of the web UI; 0: any free port."""
    allowed_hosts: Texts = ()
    """Further Host headers that the web UI accepts, `NAME` or `NAME:PORT`, such as that of a proxy."""
    storage_url: SecretStr | None = None
    """`postgresql://…` for Dagster's runs, events and schedules; unset: SQLite in `home`."""
    run_launcher: dict[str, Any] | None = None
    """`module`, `class` and `config` of a run launcher, as in `dagster.yaml`; unset: the run host of `lakesync up`."""
    url: str | None = None
    """URL of the web UI; `lakesync up` sets it."""
    partitions_start: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """First day (UTC) of the daily partitions, `YYYY-MM-DD`; unset: the day of the first push."""
    max_run_seconds: PositiveInt = 3600
    """Seconds after which Dagster terminates a run."""
    late_after_seconds: PositiveInt = 900
    """Age in seconds from which an acknowledged delta that is not in the lake, or not in its table, counts as late."""
    alert_webhook: SecretStr | None = None
    """URL that receives a JSON POST for each failed run, and when an asset check starts to fail or passes again."""
    alert_secret: SecretStr | None = None
    """Key that signs those posts with HMAC-SHA256."""

    @model_validator(mode="after")
    def _check_storage(self) -> DagsterSection:
        if self.storage_url is not None and not self.storage_url.get_secret_value().startswith("postgresql://"):
            raise ValueError("storage_url must start with postgresql://; leave it out for SQLite in the data folder")
        launcher = self.run_launcher
        if launcher is not None and (
            not launcher.keys() <= {"module", "class", "config"}
            or not all(isinstance(launcher.get(name), str) for name in ("module", "class"))
            or not isinstance(launcher.get("config", {}), dict)
        ):
            raise ValueError(
                "run_launcher must be a table with module, class and, where the class has settings, config: { module = "
                '"dagster", class = "DefaultRunLauncher" }'
            )
        return self


class FlushSection(Section):
    """`[flush]`: when staged deltas are flushed to the lake, and how a gateway without a pipeline flushes by itself."""

    to_uri: str = ""
    """Adapter URI that the gateway flushes to by itself, such as `file:///ABSOLUTE/FOLDER`; empty: the pipeline
    flushes."""
    format: Literal["parquet", "json"] = "parquet"
    """Format of the objects that a flush to `to_uri` writes."""
    queue: str = ""
    """Object store URI of the queue for updates of destination tables, which `lakesync materialise` consumes; empty:
    the staging store keeps the queue and the gateway consumes it."""
    max_bytes: PositiveInt = 4 * _MIB
    """Unflushed bytes of a gateway that trigger a flush."""
    max_table_bytes: PositiveInt | None = None
    """Unflushed bytes of one table that trigger a flush; unset: no limit per table."""
    wide_row_columns: PositiveInt | None = None
    """Average columns per unflushed delta above which `max_bytes` is reduced; unset: never."""
    wide_row_reduction: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Fraction by which `max_bytes` is reduced then."""
    max_age_seconds: PositiveFloat = 30.0
    """Age in seconds of the oldest unflushed delta that triggers a flush."""
    batch_deltas: PositiveInt | None = None
    """Deltas in one batch at most; unset: 1,000,000 in the pipeline, where Spark's tasks share them, and 250,000 in a
    gateway, which keeps them in memory."""


class MaintenanceSection(Section):
    """`[maintenance]`: the upkeep of the lake's files, of staging's log and of Dagster's run records."""

    schedule: str = "17 * * * *"
    """Cron schedule (UTC). Each part does work only if its threshold is passed."""
    min_input_files: Annotated[int, Field(ge=2)] = 8
    """Small files in a partition, or in a gateway's day of `deltas`, that trigger their compaction."""
    target_file_bytes: PositiveInt = 128 * _MIB
    """Size in bytes that compaction aims at."""
    delete_ratio_threshold: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Fraction of deleted rows from which a data file is rewritten."""
    max_manifests: PositiveInt = 20
    """Number of a table's manifests above which they are rewritten."""
    snapshot_retention_hours: Annotated[float, Field(ge=2)] = 72.0
    """Hours for which Iceberg snapshots are kept. Must exceed the longest run, which validates against the snapshot
    that it read."""
    checkpoint_retention_hours: PositiveInt = 24
    """Hours for which the snapshots of every checkpoint are kept."""
    daily_checkpoint_retention_days: PositiveInt = 30
    """Days for which the snapshots of each UTC day's first checkpoint are kept. Those of the newest one always stay."""
    orphan_retention_hours: Annotated[float, Field(ge=24)] = 72.0
    """Age in hours from which a file that no snapshot references is deleted."""
    run_retention_days: PositiveFloat = 14.0
    """Days for which Dagster's runs are kept. Runs that made the newest state of a partition stay."""


Contract = Literal["evolve", "freeze", "discard"]
"""What happens to new columns of a table; `DeclaredTable` explains each."""


class DeclaredTable(Section):
    """`[tables.NAME]`: a table of the lake."""

    contract: Contract = "evolve"
    """What happens to columns that are registered after the state table was created. `evolve`: they are added.
    `freeze`: the table's merge stops until an operator decides. `discard`: they are left out."""
