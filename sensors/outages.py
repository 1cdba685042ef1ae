"""Skips the ticks of sensors while staging or the catalogue cannot be reached, so that an outage fails no tick.

The sensors that read staging or the lake have its decorator.
"""

import functools
from collections.abc import Callable

import dagster as dg

from lakesync.model.errors import LakeUnavailableError, StagingUnavailableError

Evaluate = Callable[[dg.SensorEvaluationContext], dg.SensorResult | dg.SkipReason]
"""A sensor's function: evaluates one tick."""


def skip_during_outage(evaluate: Evaluate) -> Evaluate:
    """Decorate a sensor's function, so that a tick that cannot reach staging or the catalogue is skipped with a reason.

    The next tick compares the marks again, so a skipped tick loses nothing. `lakesync status` reports sensors whose
    ticks are skipped for long.

    Args:
        evaluate: the sensor's function.
    """

    @functools.wraps(evaluate)
    def evaluated(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            return evaluate(context)
        except (StagingUnavailableError, LakeUnavailableError) as error:
            return dg.SkipReason(str(error))

    return evaluated
