"""The resources that assets ask for, by their keys."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from lakehouse.run_state import RunState
from lakesync.config import Config
from resources.gateways import IntakeResource, StagingResource
from resources.lake import LakeResource
from resources.spark import SparkConnectResource


def run_resources(config: Config) -> Mapping[str, Any]:
    """Create the resources of a configuration.

    `run_state` is not a connection: it holds the positions that the steps of one run agree on, and Dagster creates one
    for each run.
    """

    def run_state(context: dg.InitResourceContext) -> RunState:
        given = context.resources
        pyspark, staging = given.pyspark, given.staging
        return RunState(config, given.lake.names, lambda: pyspark.spark_session, lambda: staging.store, staging.now_ms)

    return {
        "pyspark": SparkConnectResource.configured_by(config),
        "lake": LakeResource.configured_by(config),
        "staging": StagingResource.configured_by(config),
        "intake": IntakeResource.configured_by(config),
        "run_state": dg.ResourceDefinition(
            run_state,
            required_resource_keys={"pyspark", "lake", "staging"},
            description="The positions of gateways that all steps of a run agree on.",
        ),
    }
