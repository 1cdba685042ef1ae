"""When a gateway without a pipeline flushes, and how."""

from __future__ import annotations

import msgspec

from lakesync.adapters.objects import FlushFormat
from lakesync.model.errors import ConfigurationError


class AdaptiveBuffer(msgspec.Struct, frozen=True):
    """Flush earlier while what waits is wide: wide rows cost more to write and to read back."""

    wide_column_threshold: int
    """Columns a delta, on average, above which the byte threshold is reduced."""
    reduction_factor: float
    """The part of the byte threshold that is taken off then, between 0 and 1."""

    def __post_init__(self) -> None:
        """Raises: ConfigurationError: a value cannot be used."""
        if self.wide_column_threshold < 1:
            raise ConfigurationError(f"wide_column_threshold is {self.wide_column_threshold}: give 1 or more")
        if not 0 <= self.reduction_factor < 1:
            raise ConfigurationError(f"reduction_factor is {self.reduction_factor}: give 0 or more, and less than 1")


def adaptive(wide_columns: int | None, reduction: float) -> AdaptiveBuffer | None:
    """As `[flush]` says it; None where it says nothing."""
    return AdaptiveBuffer(wide_columns, reduction) if wide_columns is not None else None


class FlushSettings(msgspec.Struct, frozen=True):
    """Thresholds of one gateway. Bytes are those that staging stores, which backpressure counts too."""

    max_buffer_bytes: int = 1 << 20
    max_buffer_age_ms: int = 30_000
    """How long the oldest delta may wait."""
    per_table_budget_bytes: int | None = None
    adaptive: AdaptiveBuffer | None = None
    flush_format: FlushFormat = "parquet"
    """Of objects; a database gets rows."""
    batch_deltas: int = 50_000
    """The most deltas in one batch, a larger push apart: what is in memory at once."""

    def __post_init__(self) -> None:
        """Raises: ConfigurationError: a value cannot be used."""
        for name in ("max_buffer_bytes", "max_buffer_age_ms", "batch_deltas"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.per_table_budget_bytes is not None and self.per_table_budget_bytes < 1:
            raise ConfigurationError(
                f"per_table_budget_bytes is {self.per_table_budget_bytes}: give 1 or more, or None"
            )
        if self.flush_format not in ("parquet", "json"):
            raise ConfigurationError(f"flush_format is {self.flush_format!r}: choose parquet or json")
