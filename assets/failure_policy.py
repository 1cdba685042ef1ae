"""Decides what happens when a step fails: Dagster retries it only after a transient error, which a retry may cure.

All assets and checks run their work in `failure_policy`, which also adds the figures of a step's Spark jobs to its
metadata. A *flush* is a run that writes the changes that the gateways (each one app's stream of changes) accepted to
the lake, merges its tables and makes checkpoints. If a table or gateway fails in a run that the flush sensor requested,
the steps of the flush defer the failure (`defer_failure`): the run continues without the table or gateway, and fails in
its last step (`raise_deferred_failures`).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from assets.asset_metadata import spark_metadata
from assets.names import LEFT_OUT, NOT_FLUSHED
from lakehouse.run_state import DeferredFailure, RunState
from lakesync.model.errors import LakeSyncError, TransientError
from resources.spark import SparkConnectResource

RETRIES = 4
"""Number of retries of a step."""
FIRST_WAIT_SECONDS = 2
"""Seconds before the first retry. Each further wait is twice as long."""
MAX_WAIT_SECONDS = 60
"""Most seconds before a retry, even if a server asks for more (`Retry-After`), because a waiting step occupies its run.
A sensor requests another run for a step that failed."""


StepContext = dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext
"""What Dagster passes to a step: of a graph of ops, of an asset, or of its checks."""


@contextmanager
def failure_policy(
    context: StepContext,
    pyspark: SparkConnectResource | None = None,
    *,
    retried: bool = True,
) -> Iterator[None]:
    """Convert errors of LakeSync in the block to Dagster's. Any other error is a defect and is raised unchanged.

    At the end it adds the figures of the step's Spark jobs to the metadata of its assets, or of its output.

    Args:
        context: the step's context.
        pyspark: the step's Spark resource, which gets a new session before a retry; None for a step without Spark.
        retried: whether Dagster retries the step after a transient error. False if a sensor requests another run for
            the same work, so that the step fails immediately.

    Raises:
        RetryRequested: the error was transient, or one error of a group was. Dagster waits as long as the error says,
            but at most `MAX_WAIT_SECONDS`.
        Failure: no error was transient, `retried` is False, or no retry is left; Dagster does not retry the step.
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
        if _has_defect(raised):
            raise
        errors = list(_leaves(raised))
        text = "; ".join(f"{getattr(error, 'code', '')}: {error}" for error in errors)
        transient = [error for error in errors if isinstance(error, TransientError)]
        if not retried or is_final(context, raised):
            raise dg.Failure(description=text, allow_retries=False) from raised
        context.log.warning("the step is retried after a transient error: %s", text)
        if pyspark is not None:
            pyspark.renew()
        retry_after = max(error.retry_after or 0 for error in transient)
        wait = min(retry_after or FIRST_WAIT_SECONDS * 2 ** _retry_number(context), MAX_WAIT_SECONDS)
        raise dg.RetryRequested(max_retries=RETRIES, seconds_to_wait=wait) from raised


def is_final(context: StepContext, error: Exception) -> bool:
    """Return whether a step's error is final: Dagster does not retry the step, or has no retry left.

    Steps call it to decide whether to raise the error or to defer it. The result is right only in a `failure_policy`
    with `retried=True`.

    Args:
        context: the step's context.
        error: the error that the step raised.
    """
    is_transient = any(isinstance(each, TransientError) for each in _leaves(error))
    return _has_defect(error) or not is_transient or _retry_number(context) >= RETRIES


def defer_failure(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
    run_state: RunState,
    error: Exception,
    what: str,
    gateway: str | None = None,
) -> None:
    """Record a failure, so that the run continues without one table or gateway, and fails because of it at its end.

    The run's tags list such failures immediately, even if another step fails the run later.

    Args:
        context: the step's context.
        run_state: the run's state.
        error: the failure.
        what: what was not done, with the name of the table or gateway. Alerts recognise a repeated failure by this
            text, so it must be the same in each run.
        gateway: id of the gateway, if it could not be flushed; None for another failure.
    """
    description = f"{what}: {brief(error)}"
    traceback_of = error if _has_defect(error) else None  # the message of LakeSync's own errors suffices
    context.log.error("the run continues without this: %s", description, exc_info=traceback_of)
    run_state.deferred_failures.append(DeferredFailure(what, description, gateway))
    gateways = sorted({each.gateway for each in run_state.deferred_failures if each.gateway is not None})
    left_out = json.dumps(sorted({each.what for each in run_state.deferred_failures}))
    context.instance.add_run_tags(context.run.run_id, {NOT_FLUSHED: ",".join(gateways), LEFT_OUT: left_out})


def brief(error: Exception) -> str:
    """Return an error as one line: its code, or its type if it is not LakeSync's, and its message's first line."""
    texts = []
    for each in _leaves(error):
        first_line = str(each).strip().partition("\n")[0]
        texts.append(f"{getattr(each, 'code', type(each).__name__)}: {first_line}")
    return "; ".join(texts)


def raise_deferred_failures(run_state: RunState) -> None:
    """Fail the run's last step if failures were deferred.

    Args:
        run_state: the run's state, which has the failures.

    Raises:
        Failure: failures were deferred. Dagster does not retry the step.
    """
    if run_state.deferred_failures:
        raise dg.Failure("; ".join(each.description for each in run_state.deferred_failures), allow_retries=False)


def _retry_number(context: StepContext) -> int:
    """Return how many times Dagster has retried the step; 0 in its first attempt."""
    op_context = context if isinstance(context, dg.OpExecutionContext) else context.op_execution_context
    return op_context.retry_number


def _has_defect(error: Exception) -> bool:
    """Return whether an error, or one of a group, is not LakeSync's."""
    return not all(isinstance(each, LakeSyncError) for each in _leaves(error))


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yield an error, or those in a group of errors."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
