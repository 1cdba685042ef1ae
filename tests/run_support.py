"""The resources of a run, without a Dagster run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg

from lakesync.config import Config
from lakesync.staging.store.pipeline import PipelineStore
from lakesync_dagster.definitions import run_resources
from resources.stores import StagingResource


class GivenStaging(StagingResource):
    """A store that the test has already opened."""

    given: dg.ResourceDependency[PipelineStore]

    @property
    def store(self) -> PipelineStore:
        return self.given


def resources_of(config: Config, store: PipelineStore | None = None) -> Mapping[str, Any]:
    """The resources of a configuration; `store` replaces the configured one."""
    found = dict(run_resources(config))
    if store is not None:
        found["staging"] = GivenStaging(uri="", settings=config, given=store)
    return found


@contextmanager
def a_run(config: Config, store: PipelineStore | None = None) -> Iterator[Any]:
    """Open the resources as Dagster opens them for a run: `pyspark`, `lake`, `staging`, `intake`, `run_state`."""
    with dg.build_resources(resources_of(config, store)) as opened:
        yield opened
