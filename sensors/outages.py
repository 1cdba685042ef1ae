"""Skips the ticks of sensors while what they read is unreachable, so that an outage fails no tick."""

import functools
from collections.abc import Callable

import dagster as dg

from lakesync.model.errors import LakeUnavailableError, StagingUnavailableError

Evaluate = Callable[[dg.SensorEvaluationContext], dg.SensorResult | dg.SkipReason]


def skip_during_outage(evaluate: Evaluate) -> Evaluate:
    """Decorate a sensor's function: a tick that cannot reach staging or the catalogue is skipped and names the reason.

    Marks are compared anew by the next tick, so a skipped tick loses nothing. `lakesync status` reports sensors that
    stay silent.
    """

    @functools.wraps(evaluate)
    def evaluated(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            return evaluate(context)
        except (StagingUnavailableError, LakeUnavailableError) as error:
            return dg.SkipReason(str(error))

    return evaluated
