"""The rule used by benchmarks with rules: a client sees the rows of its team."""

from __future__ import annotations

from typing import Any

RULES: dict[str, Any] = {
    "version": 1,
    "buckets": [{"name": "team", "tables": [], "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}]}],
}
