"""Asks for a run of each destination's leaf that has not followed what `deltas` became; each leaf by itself."""

from collections.abc import Sequence

import dagster as dg

from assets.destinations import FOLLOWED
from assets.labels import DELTAS, REQUESTED_BY
from assets.series import newest, version_of
from resources.compat_dagster import UnresolvedAssetJobDefinition
from sensors.pauses import pause

DESTINATION_SENSOR = "destination_sensor"
LEAF = "lakesync/leaf"
"""Run tag: the asset that the run is for."""


def destination_sensor(job: UnresolvedAssetJobDefinition, keys: Sequence[dg.AssetKey]) -> dg.SensorDefinition:
    """The sensor of destinations: a leaf that fails is asked for again after a pause that doubles, others go on."""

    @dg.sensor(
        name=DESTINATION_SENSOR,
        job=job,
        minimum_interval_seconds=5,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Requests a run for each destination that lacks what was flushed, also after it was unreachable.",
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        wanted, held = due(context.instance, keys)
        requests = [
            dg.RunRequest(asset_selection=[key], tags={REQUESTED_BY: DESTINATION_SENSOR, LEAF: key.to_user_string()})
            for key in wanted
        ]
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason("; ".join(held) or "all follow")

    return watch


def due(instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]) -> tuple[list[dg.AssetKey], list[str]]:
    """The leaves for which a run is to be asked, and why others that lack something have to wait."""
    version = version_of(newest(instance, DELTAS))
    wanted, held = [], []
    for key in keys:
        followed = _followed(instance, key)
        if version is None or followed == version:
            continue
        name = key.to_user_string()
        why = pause(instance, {LEAF: name}, name)
        if why is None:
            wanted.append(key)
        else:
            held.append(why)
    return wanted, held


def _followed(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    made = newest(instance, key)
    value = made.metadata.get(FOLLOWED) if made else None
    return str(value.value) if value is not None else None
