"""The pipeline's door to staging: remote where the gateway owns the store, direct on Postgres."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.config import Config
    from lakesync.staging.store import PipelineStore


@contextmanager
def pipeline_store(config: Config) -> Iterator[PipelineStore]:
    """The store that the configuration names, closed at the end.

    Raises:
        StagingUnavailableError: it cannot be reached.
    """
    raise NotImplementedError
    yield
