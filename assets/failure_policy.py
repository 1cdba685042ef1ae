"""How a step ends: Dagster retries transient errors and no others, and a materialisation says what Spark did for it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.asset_metadata import LEFT_OUT, SET_ASIDE
from assets.run_metrics import spark_metadata
from lakehouse.run_state import RunState, SetAside
from lakesync.model.errors import LakeSyncError, TransientError
from resources.spark import SparkConnectResource

RETRIES = 4
FIRST_WAIT = 2
"""Seconds before the first try again; each next wait is twice as long."""


Step = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@contextmanager
def failure_policy(
    context: Step,
    pyspark: SparkConnectResource | None = None,
    *,
    retried: bool = True,
) -> Iterator[None]:
    """Turn errors of LakeSync into Dagster's; any other error is a defect and passes unchanged.

    The assets that the step materialises, or else its output, get the figures of its Spark jobs as metadata.

    Args:
        context: the step's.
        pyspark: the step's Spark, which gets a new session before a retry; None for a step without Spark.
        retried: whether Dagster retries the step after a transient error. False where a sensor or schedule asks again.

    Raises:
        RetryRequested: the error was transient, or a group that contained a transient one.
        Failure: the error was terminal; Dagster does not retry it.
    """
    if pyspark is not None:
        pyspark.start_measuring()
    try:
        yield
        if pyspark is not None and isinstance(context, dg.AssetExecutionContext):
            figures = spark_metadata(pyspark)
            for key in context.selected_asset_keys:
                context.add_asset_metadata(figures, key)
        elif pyspark is not None and isinstance(context, dg.OpExecutionContext):
            context.add_output_metadata(spark_metadata(pyspark))
    except (LakeSyncError, ExceptionGroup) as raised:
        errors = list(_leaves(raised))
        if not all(isinstance(error, LakeSyncError) for error in errors):
            raise
        text = "; ".join(f"{getattr(error, 'code', '')}: {error}" for error in errors)
        transient = [error for error in errors if isinstance(error, TransientError)]
        if not transient or not retried:
            raise dg.Failure(description=text, allow_retries=False) from raised
        context.log.warning("a transient error, the step is retried: %s", text)
        if pyspark is not None:
            pyspark.renew()
        stated = max(error.retry_after or 0 for error in transient)
        op = context if isinstance(context, dg.OpExecutionContext) else context.op_execution_context
        wait = stated or FIRST_WAIT * 2**op.retry_number
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=wait) from raised


def is_final(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, error: Exception) -> bool:
    """Return whether a step is not retried after an error.

    Args:
        context: the step's.
        error: what it raised.
    """
    is_transient = any(isinstance(each, TransientError) for each in _leaves(error))
    return not is_transient or context.op_execution_context.retry_number >= RETRIES


def set_aside(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
    run_state: RunState,
    error: Exception,
    what: str,
    gateway: str | None = None,
) -> None:
    """Continue the run without one table or gateway; the run's last step fails for it.

    Args:
        context: the step's.
        run_state: the run's.
        error: the failure.
        what: the table or gateway, and what was not done.
        gateway: the gateway, if it could not be flushed.
    """
    description = f"{what}: {brief(error)}"
    known = isinstance(error, LakeSyncError | ExceptionGroup)
    context.log.error("the run continues without this: %s", description, exc_info=None if known else error)
    run_state.set_aside.append(SetAside(what, description, gateway))


def brief(error: Exception) -> str:
    """An error in one line: its code, or its type where it is none of LakeSync's, and its message."""
    texts = (f"{getattr(each, 'code', type(each).__name__)}: {_first_line(each)}" for each in _leaves(error))
    return "; ".join(texts)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def raise_set_aside(context: dg.AssetExecutionContext, run_state: RunState) -> None:
    """Fail the run's last step if the run continued without something.

    Args:
        context: the step's.
        run_state: the run's failures.

    Raises:
        Failure: the run set something aside; Dagster does not retry it.
    """
    if run_state.set_aside:
        gateways = sorted({each.gateway for each in run_state.set_aside if each.gateway is not None})
        left_out = json.dumps(sorted({each.what for each in run_state.set_aside}))
        context.instance.add_run_tags(context.run.run_id, {SET_ASIDE: ",".join(gateways), LEFT_OUT: left_out})
        raise dg.Failure("; ".join(each.description for each in run_state.set_aside), allow_retries=False)


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
