"""Sessions side by side on one Spark Connect server."""

import gc

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator as Answers

from lakehouse.sessions import connect, session


def test_a_session_that_is_forgotten_closes_nothing_of_the_others(spark_server):
    with session(spark_server["config"]) as living:
        forgotten = connect(spark_server["config"])
        for spark in (living, forgotten):
            assert spark.range(3).count() == 3
        shared, client = Answers._release_thread_pool_instance, forgotten.client
        del forgotten, spark
        gc.collect()
        assert not client.is_closed
        assert Answers._release_thread_pool_instance is shared
        assert living.range(3).count() == 3
        client.release_session()
        client.close()


@pytest.mark.parametrize("text", ["${env:HOME}", "${spark.app.id}", "${system:user.dir}"])
def test_spark_substitutes_nothing_in_the_text_of_a_statement(spark_server, text):
    address = f"{spark_server['remote']}/;token={spark_server['token']}"
    bare = SparkSession.builder.remote(address).create()  # without the settings of a session of ours
    try:
        assert bare.sql(f"SELECT '{text}'").first()[0] == text
    finally:
        bare.stop()
    with session(spark_server["config"]) as spark:
        assert spark.conf.get("spark.sql.variable.substitute") == "false"
        assert spark.sql(f"SELECT '{text}'").first()[0] == text
