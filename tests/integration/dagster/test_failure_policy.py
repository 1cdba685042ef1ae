"""The end of a step after a LakeSync error: Dagster retries transient errors, and no others."""

import dagster as dg
import pytest

from assets.failure_policy import MAX_WAIT_SECONDS, RETRIES, failure_policy, is_final
from lakesync.config import load
from lakesync.model.errors import FlushError, IntegrityError, LakeUnavailableError, RateLimitedError, SchemaError
from resources.spark import SparkConnectResource

SOON = 0.01


def run(tmp_path, raised):
    """Run an asset whose first attempts raise the given errors; return the result and the number of attempts."""
    left = list(raised)
    tries = []

    @dg.asset
    def table(context: dg.AssetExecutionContext, pyspark: SparkConnectResource):
        tries.append(context.op_execution_context.retry_number)
        with failure_policy(context, pyspark):
            if left:
                raise left.pop(0)

    return dg.materialize(
        [table],
        resources={"pyspark": SparkConnectResource.configured_by(load({"data_dir": tmp_path}))},
        raise_on_error=False,
    ), tries


def test_a_transient_error_is_retried_after_its_stated_delay(tmp_path):
    lost = [LakeUnavailableError("Spark is gone", retry_after=SOON), FlushError("not there", retry_after=SOON)]
    result, tries = run(tmp_path, lost)
    assert result.success
    assert tries == [0, 1, 2]
    waits = [event.event_specific_data.seconds_to_wait for event in result.all_events if event.is_step_up_for_retry]
    assert waits == [SOON, SOON]


def test_a_retry_does_not_wait_for_an_hour():
    @dg.op
    def limited(context: dg.OpExecutionContext):
        with pytest.raises(dg.RetryRequested) as raised, failure_policy(context):
            raise RateLimitedError("come back later", retry_after=3600)
        return raised.value.seconds_to_wait

    @dg.job
    def job():
        limited()

    assert job.execute_in_process().output_for_node("limited") == MAX_WAIT_SECONDS


def test_a_persistent_transient_error_fails_after_all_retries(tmp_path):
    result, tries = run(tmp_path, [FlushError("not there", retry_after=SOON)] * (RETRIES + 2))
    assert not result.success
    assert len(tries) == RETRIES + 1
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert failed.step_failure_data.user_failure_data.description.endswith(": not there")


@pytest.mark.parametrize(
    "raised",
    [
        SchemaError("t.n is string in this schema and number in the lake"),
        ExceptionGroup("checkpoints failed", [IntegrityError("a"), SchemaError("b")]),
        KeyError("a defect of ours"),
    ],
)
def test_a_terminal_error_or_a_defect_fails_immediately(tmp_path, raised):
    result, tries = run(tmp_path, [raised] * 3)
    assert not result.success
    assert tries == [0]


def test_an_exception_group_with_a_transient_error_is_retried(tmp_path):
    both = ExceptionGroup("checkpoints failed", [IntegrityError("a"), LakeUnavailableError("b", retry_after=SOON)])
    result, tries = run(tmp_path, [both])
    assert result.success
    assert tries == [0, 1]


@pytest.mark.parametrize(
    ("raised", "final"),
    [
        (FlushError("not there", retry_after=SOON), [False] * RETRIES + [True]),
        (SchemaError("t.n is string in this schema and number in the lake"), [True]),
        (ExceptionGroup("two parts failed", [FlushError("not there"), KeyError("a defect of ours")]), [True]),
    ],
)
def test_an_error_is_final_if_dagster_does_not_retry_the_step(raised, final):
    found = []

    @dg.asset
    def table(context: dg.AssetExecutionContext):
        with failure_policy(context):
            found.append(is_final(context, raised))
            raise raised

    assert not dg.materialize([table], raise_on_error=False).success
    assert found == final
