"""M5: the merge on Spark gives the same state as the Python merge, for the golden table and for random histories.

Every case is a separate row, so that one Spark job merges hundreds of them.
"""

import json
import random
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lakehouse.history.id_sums import id_sums
from lakehouse.sessions import session
from lakehouse.tables.merge_job import merged_frames
from lakesync.model.delta import id_number
from lakesync.model.merge import RowState
from lakesync.testing import strategies
from lakesync.wire.json import decode_deltas
from tests.lake_support import history, states
from tests.spelling import spelled

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = 400

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@pytest.fixture(scope="module")
def spark(spark_server):
    with session(spark_server["config"], shared=True) as spark:
        yield spark


def renamed(deltas, row_id):
    return [msgspec.structs.replace(delta, table="t", row_id=row_id) for delta in deltas]


def python_merge(deltas):
    state = RowState()
    for delta in deltas:
        state.merge(delta)
    return state


def generated(strategy, count):
    """Generate this number of examples, for one assertion over all of them."""
    found = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(example):
        found.append(example)

    collect()
    return found


def merged(deltas, state=None):
    return states(merged_frames(deltas, state, ()))


def differences(cases, reduced):
    """The cases in which Spark and Python have different states."""
    return {
        name: (spelled(python_merge(deltas)), spelled(reduced.get(("g", name), RowState())))
        for name, deltas in cases.items()
        if spelled(python_merge(deltas)) != spelled(reduced.get(("g", name), RowState()))
    }


def test_m5_spark_agrees_with_the_vectors(spark):
    golden = json.loads((VECTORS / "merge.json").read_text("utf-8"))
    cases = {
        case["label"]: renamed(decode_deltas(json.dumps(case["deltas"]).encode()), case["label"]) for case in golden
    }
    reduced = merged(history(spark, [(256, deltas) for deltas in cases.values()]))
    for case in golden:
        state = reduced.get(("g", case["label"]), RowState())
        assert spelled(state) == case["state"], case["label"]


def test_m5_spark_merges_random_histories_in_one_step_and_in_several(spark):
    histories = generated(strategies.histories(max_size=10), CASES)
    cases = {f"row-{number}": renamed(deltas, f"row-{number}") for number, deltas in enumerate(histories)}
    pushes = [(256 * place, [delta]) for place, delta in enumerate(chain.from_iterable(cases.values()), 1)]
    random.Random(7).shuffle(pushes)
    at_once = merged(history(spark, pushes))
    assert not differences(cases, at_once)

    half = len(pushes) // 2
    overlapping = pushes[half - 50 :]
    first = merged_frames(history(spark, pushes[:half]), None, ())
    in_steps = merged(history(spark, overlapping), first)
    assert not differences(cases, in_steps)
    assert in_steps == at_once


def test_m5_spark_merges_any_value_and_any_id_like_the_gateway(spark):
    deltas = generated(strategies.deltas(stamps=st.integers(1, 3)), 200)
    cases = {}
    for delta in deltas:
        cases.setdefault(delta.row_id, []).append(msgspec.structs.replace(delta, table="t"))
    reduced = merged(history(spark, [(256, deltas)]))
    assert not differences(cases, reduced)


def test_the_sum_of_ids_equals_that_of_the_ledger(spark):
    deltas = generated(strategies.deltas(stamps=st.integers(1, 3)), 60)
    foreign = ["chosen by the client", "F" * 64, "0" * 64 + "\n", "é", *(delta.delta_id for delta in deltas)]
    hashes = [delta.delta_id for delta in deltas]
    groups = {"any": foreign, "hashes": hashes}
    given_ids = [(group, name) for group, names in groups.items() for name in names]
    rows = spark.createDataFrame(given_ids, "kind string, delta_id string")
    sums = {group: (len(names), sum(map(id_number, names)) % 2**64) for group, names in groups.items()}
    assert {row["kind"]: (row["count"], row["total"]) for row in id_sums(rows, ["kind"]).collect()} == sums
    (of_hashes,) = id_sums(rows.where("kind = 'hashes'")).collect()
    assert tuple(of_hashes) == sums["hashes"]
    assert [tuple(row) for row in id_sums(rows.where("false")).collect()] == [(None, None)]
