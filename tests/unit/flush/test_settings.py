"""Invalid flush settings are rejected, and embedded gateways and gateway servers have the same defaults."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lakesync.config.pipeline_sections import FlushSection
from lakesync.flush import FlushSettings, WideRowThreshold
from lakesync.model.errors import ConfigurationError


def test_flush_settings_have_the_documented_defaults():
    settings = FlushSettings()
    assert settings == replace(FlushSettings.of_section(FlushSection()), batch_deltas=50_000)
    assert (settings.max_buffer_bytes, settings.max_buffer_age_ms) == (4 << 20, 30_000)
    assert (settings.per_table_budget_bytes, settings.wide_rows, settings.flush_format) == (None, None, "parquet")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: FlushSettings(max_buffer_bytes=0), "max_buffer_bytes is 0"),
        (lambda: FlushSettings(max_buffer_age_ms=-1), "max_buffer_age_ms is -1"),
        (lambda: FlushSettings(batch_deltas=0), "batch_deltas is 0"),
        (lambda: FlushSettings(per_table_budget_bytes=0), "per_table_budget_bytes is 0"),
        (lambda: FlushSettings(flush_format="csv"), "flush_format is 'csv'"),
        (lambda: WideRowThreshold(0, 0.5), "wide_column_threshold is 0"),
        (lambda: WideRowThreshold(10, 1.0), r"reduction_factor is 1\.0"),
    ],
)
def test_invalid_flush_settings_are_named(make, named):
    with pytest.raises(ConfigurationError, match=named):
        make()
