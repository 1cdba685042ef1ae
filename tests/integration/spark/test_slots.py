"""Tasks that wait for other servers, and may hang, leave Spark's cores to flushes."""

import threading
import time

import pyarrow as pa
import pytest

from lakehouse.sessions import session
from lakehouse.task_runner import in_tasks
from tests.integration.gateway_support import until

pytestmark = pytest.mark.timeout(300)

HANGING = 6
"""The number of hanging tasks, such as four destinations and two polls."""


def test_hanging_tasks_do_not_prevent_others_from_starting(spark_server, tmp_path):
    released = tmp_path / "released"

    def hang(number):
        (tmp_path / f"{number}").touch()
        while not released.exists():
            time.sleep(0.05)
        yield pa.record_batch([pa.array([number], pa.int32())], ["number"])

    def count(number):
        yield pa.record_batch([pa.array([number], pa.int32())], ["number"])

    def begun():
        return all((tmp_path / f"{number}").exists() for number in range(HANGING))

    with session(spark_server["config"]) as spark:
        waiting = threading.Thread(target=in_tasks(spark, HANGING, hang, "number int", one_task_each=True).toArrow)
        waiting.start()
        try:
            until(begun, "all of them to hang at the same time")
            found = in_tasks(spark, 20, count, "number int")
            assert sorted(found.toArrow()["number"].to_pylist()) == list(range(20))
            assert found.selectExpr("spark_partition_id() AS task").distinct().count() == 2, "a task for each core"
        finally:
            released.touch()
            waiting.join()
