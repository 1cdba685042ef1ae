"""How a step ends when LakeSync raises: what may pass is tried again, what cannot is final."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.labels import SET_ASIDE
from lakesync.exceptions import LakeSyncError, TransientError
from resources.pipeline import Pipeline

RETRIES = 4
FIRST_WAIT = 2
"""Seconds before the first try again; each next wait is twice as long."""


@contextmanager
def outcome(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, pipeline: Pipeline, *, retried: bool = True
) -> Iterator[None]:
    """Turn errors of LakeSync into Dagster's; anything else is a defect and passes as it is.

    Args:
        context: of the step.
        pipeline: of the run.
        retried: whether a transient error has the step tried again; not where a sensor or schedule asks again.

    Raises:
        RetryRequested: the error was transient, or a group that held a transient one.
        Failure: it was terminal; not tried again.
    """
    try:
        yield
    except (LakeSyncError, ExceptionGroup) as raised:
        errors = list(_leaves(raised))
        if not all(isinstance(error, LakeSyncError) for error in errors):
            raise
        text = "; ".join(f"{getattr(error, 'code', '')}: {error}" for error in errors)
        transient = [error for error in errors if isinstance(error, TransientError)]
        if not transient or not retried:
            raise dg.Failure(description=text, allow_retries=False) from raised
        context.log.warning("a transient error, tried again: %s", text)
        pipeline.renew_spark()
        stated = max(error.retry_after or 0 for error in transient)
        wait = stated or FIRST_WAIT * 2**context.op_execution_context.retry_number
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=wait) from raised


def set_aside(
    context: dg.AssetExecutionContext, pipeline: Pipeline, error: LakeSyncError, what: str, gateway: str | None = None
) -> None:
    """Go on without a table, or a gateway, that is at fault alone; the run's last step fails for it.

    Args:
        context: of the step.
        pipeline: of the run.
        error: what went wrong.
        what: with what.
        gateway: that could not be flushed.
    """
    told = f"{what}: {error.code}: {error}"
    context.log.error("the run goes on without this: %s", told)
    pipeline.set_aside.append((told, gateway))


def raise_set_aside(context: dg.AssetExecutionContext, pipeline: Pipeline) -> None:
    """At a run's end.

    Raises:
        Failure: something was set aside; not tried again by this run.
    """
    if pipeline.set_aside:
        gateways = sorted({gateway for _, gateway in pipeline.set_aside if gateway is not None})
        context.instance.add_run_tags(context.run.run_id, {SET_ASIDE: ",".join(gateways)})
        raise dg.Failure(description="; ".join(told for told, _ in pipeline.set_aside), allow_retries=False)


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
