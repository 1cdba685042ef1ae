"""Settings of the flush of a gateway without a pipeline, from `[flush]` or an embedding program."""

from __future__ import annotations

import msgspec

from lakesync.adapters.object_store.delta_files import FlushFormat
from lakesync.model.errors import ConfigurationError


class AdaptiveBuffer(msgspec.Struct, frozen=True):
    """Flushes earlier while rows are wide, because wide rows cost more to write and to read back."""

    wide_column_threshold: int
    """Average columns per delta above which the byte threshold is reduced."""
    reduction_factor: float
    """Share by which the byte threshold is reduced, between 0 and 1."""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            ConfigurationError: a value is out of range.
        """
        if self.wide_column_threshold < 1:
            raise ConfigurationError(f"wide_column_threshold is {self.wide_column_threshold}: give 1 or more")
        if not 0 <= self.reduction_factor < 1:
            raise ConfigurationError(f"reduction_factor is {self.reduction_factor}: give 0 or more, and less than 1")


def adaptive_buffer(wide_columns: int | None, reduction: float) -> AdaptiveBuffer | None:
    """Return the adaptive buffer of `[flush]`; None if it is not configured.

    Args:
        wide_columns: average columns per delta above which to flush earlier; None to disable.
        reduction: share by which the byte threshold is reduced then, between 0 and 1.
    """
    return AdaptiveBuffer(wide_columns, reduction) if wide_columns is not None else None


class FlushSettings(msgspec.Struct, frozen=True):
    """Flush thresholds of one gateway. Bytes are stored bytes in staging, as counted for backpressure."""

    max_buffer_bytes: int = 1 << 20
    """Unflushed bytes of a gateway that make a flush due."""
    max_buffer_age_ms: int = 30_000
    """Age of the oldest unflushed delta that makes a flush due."""
    per_table_budget_bytes: int | None = None
    """Unflushed bytes of one table that make a flush due; None for no limit per table."""
    adaptive: AdaptiveBuffer | None = None
    """Reduces `max_buffer_bytes` while rows are wide; None to disable."""
    flush_format: FlushFormat = "parquet"
    """Format of new objects in an object store; databases ignore it."""
    batch_deltas: int = 50_000
    """Maximum deltas per batch, which is kept in memory; a larger push is one batch."""

    def __post_init__(self) -> None:
        """Validate the values.

        Raises:
            ConfigurationError: a value is out of range.
        """
        for name in ("max_buffer_bytes", "max_buffer_age_ms", "batch_deltas"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.per_table_budget_bytes is not None and self.per_table_budget_bytes < 1:
            raise ConfigurationError(
                f"per_table_budget_bytes is {self.per_table_budget_bytes}: give 1 or more, or None"
            )
        if self.flush_format not in ("parquet", "json"):
            raise ConfigurationError(f"flush_format is {self.flush_format!r}: choose parquet or json")
