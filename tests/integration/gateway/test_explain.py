"""`/admin/explain` tells an operator why a client has or lacks a row."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from tests.integration.gateway_support import SECRET, delta, wall_ms
from tests.integration.live.live_support import Live

MINE = {
    "version": 1,
    "buckets": [
        {"name": "mine", "tables": ["todos"], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]},
        {"name": "team", "tables": [], "filters": [{"column": "team", "op": "in", "value": "jwt:teams"}]},
        {"name": "open", "tables": ["notes"], "filters": [{"column": "public", "op": "eq", "value": "true"}]},
    ],
}


@pytest.fixture
def alice(served):
    writer = served.client("alice")
    writer.admin().call("POST", "/admin/sync-rules/{gw}", json=MINE)
    return writer


def explain(client, row: str, by: str, table: str = "todos", **query: str) -> dict:
    asked = {"clientId": by, "table": table, "rowId": row, **query}
    answer = client.admin().call("GET", "/admin/explain/{gw}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def says(explanation: dict, words: str) -> bool:
    return any(words in reason for reason in explanation["reasons"])


def test_a_row_that_was_never_pushed_is_absent(alice):
    explanation = explain(alice, "t1", "bob")
    assert explanation["verdict"] == "absent"
    assert says(explanation, "was ever accepted")
    assert says(explanation, "db.pending() at the writer lists unsent and rejected changes")
    assert explanation["row"]["exists"] is False


def test_a_row_of_a_table_without_a_schema_is_absent_with_a_hint(alice):
    columns = [{"name": "owner", "type": "string"}]
    alice.admin().call("POST", "/admin/schema/{gw}", json={"table": "todos", "columns": columns})
    assert says(explain(alice, "t1", "bob", table="todo"), "has no schema of table 'todo'; did you mean 'todos'?")
    assert says(explain(alice, "t1", "bob", table="x"), "has no schema of table 'x'; `lakesync schema list`")
    assert not says(explain(alice, "t1", "bob"), "has no schema")


def test_an_absent_row_of_a_table_without_a_bucket_names_the_missing_bucket(alice):
    bucket = {"name": "mine", "tables": ["todos"], "filters": []}
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": [bucket]})
    missing = "no bucket of the sync rules contains table 'notes'"
    assert says(explain(alice, "t1", "bob", table="notes"), missing)
    assert not says(explain(alice, "t1", "bob"), "no bucket of the sync rules")


def test_a_row_whose_push_was_rejected_is_absent_with_the_reason(alice):
    alice.admin().call(
        "POST", "/admin/schema/{gw}", json={"table": "todos", "columns": [{"name": "owner", "type": "string"}]}
    )
    bad, good = delta("t1", {"owner": 5}, client="alice"), delta("t2", {"owner": "bob"}, client="alice")
    assert alice.push(good, bad).status_code == 422
    explanation = explain(alice, "t1", "bob")
    assert explanation["verdict"] == "absent"
    assert says(explanation, "a push of 'alice' that changed it was rejected at")
    assert says(explanation, "SCHEMA_ERROR: column 'owner' of table 'todos' is string")
    assert (explanation["refused"]["deltaId"], explanation["refused"]["clientId"]) == (bad["deltaId"], "alice")
    assert says(explain(alice, "t2", "bob"), "in the same push, row 't1' of table 'todos' was rejected")
    assert alice.push(delta("t1", {"owner": "bob"}, client="alice"), good).status_code == 200
    assert [explain(alice, row, "bob")["refused"] for row in ("t1", "t2")] == [None, None]


def test_a_rejected_push_in_anothers_name_is_listed_under_the_tokens_client(alice):
    body = {"clientId": "bob", "deltas": [delta("t1", {"owner": "bob"}, client="bob")], "lastSeenHlc": "0"}
    assert alice.call("POST", "/sync/{gw}/push", json=body).status_code == 403
    assert explain(alice, "t1", "bob")["refused"]["clientId"] == "alice"


def test_a_row_of_the_next_pull_is_waiting(alice, served):
    alice.push(delta("t0", {"owner": "bob"}, client="alice"))
    bob = served.client("bob", alice.gateway)
    bob.pull()
    alice.push(delta("t1", {"owner": "bob"}, client="alice"))
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["nextPull"]) == ("waiting", ["INSERT"])
    assert says(explanation, "next pull from the cursor that it was last sent returns INSERT")
    assert says(explanation, "bucket 'mine' shows it")
    assert int(explanation["client"]["newestHlc"]) > int(explanation["client"]["sentHlc"])
    since = str(explanation["client"]["sentHlc"])
    assert [each["op"] for each in bob.pull(since).json()["deltas"]] == explanation["nextPull"]
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["nextPull"]) == ("delivered", [])
    bob.push(delta("t1", {"owner": "carol"}, before={"owner": "bob"}, client="bob"))
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["nextPull"]) == ("waiting", ["DELETE"])


def test_a_row_that_rules_hide_names_the_filter_and_both_values(alice, served):
    bob = served.client("bob", alice.gateway, teams=["red", "blue"])
    alice.push(delta("t1", {"owner": "carol", "team": "green"}, client="alice"))
    assert bob.pull().json()["deltas"] == []
    explanation = explain(alice, "t1", "bob")
    assert explanation["verdict"] == "hidden"
    assert says(explanation, "bucket 'mine' does not show it: column 'owner' is 'carol', which is not eq 'bob'")
    assert says(
        explanation, "bucket 'team' does not show it: column 'team' is 'green', which is not in 'red' or 'blue'"
    )
    assert says(explanation, "bucket 'open' does not contain table 'todos'")
    assert explanation["client"]["claims"] == {"sub": "bob", "teams": ["red", "blue"]}
    assert explanation["client"]["claimsFrom"] == "record"
    shown = [(each["bucket"], each["coversTable"], each["shows"]) for each in explanation["buckets"]]
    assert shown == [("mine", True, False), ("team", True, False), ("open", False, False)]
    assert [reason for each in explanation["buckets"] for reason in each["reasons"]] == [
        reason for reason in explanation["reasons"] if reason.startswith("bucket ")
    ]


def test_other_claims_can_be_tried(alice, served):
    served.client("bob", alice.gateway).pull()
    alice.push(delta("t1", {"team": "green"}, client="alice"))
    assert says(explain(alice, "t1", "bob"), "bucket 'mine' does not show it: the row has no column 'owner'")
    assert says(explain(alice, "t1", "bob"), "bucket 'team' does not show it: the client has no claim 'teams'")
    explanation = explain(alice, "t1", "bob", claims=json.dumps({"teams": ["green"], "sub": "someone else"}))
    assert explanation["client"]["claims"] == {"sub": "bob", "teams": ["green"]}
    assert says(explanation, "bucket 'team' shows it")
    assert explanation["verdict"] == "waiting"


def test_a_deleted_row_names_its_tombstone(alice, served):
    row = {"owner": "bob"}
    stamp = wall_ms() << 16
    alice.push(
        delta("t1", row, client="alice", hlc=stamp), delta("t1", None, before=row, client="alice", hlc=stamp + 1)
    )
    bob = served.client("bob", alice.gateway)
    bob.pull()
    explanation = explain(alice, "t1", "bob")
    assert explanation["verdict"] == "deleted"
    assert says(explanation, "is deleted, by client 'alice'")
    assert (explanation["row"]["tombstoneHlc"], explanation["row"]["tombstoneClientId"]) == (str(stamp + 1), "alice")


def test_an_unknown_client_and_one_between_pages_are_waiting(alice, served):
    alice.push(*(delta(f"t{n}", {"owner": "bob"}, client="alice") for n in range(3)))
    explanation = explain(alice, "t2", "bob")
    assert (explanation["verdict"], explanation["client"]["known"], explanation["nextPull"]) == (
        "waiting",
        False,
        ["INSERT"],
    )
    assert says(explanation, "was never seen")
    served.client("bob", alice.gateway).pull(limit=1)
    explanation = explain(alice, "t2", "bob")
    assert (explanation["verdict"], explanation["client"]["walking"]) == ("waiting", True)
    assert explain(alice, "t0", "bob")["verdict"] == "delivered"


def test_the_writers_own_row_is_explained_as_delivered_with_the_writer_of_each_column(alice):
    alice.push(delta("t0", {"owner": "alice"}, client="alice"))
    cursor = alice.pull().json()["serverHlc"]
    alice.push(delta("t1", {"owner": "alice", "n": 1}, client="alice"), cursor=cursor)
    explanation = explain(alice, "t1", "alice")
    assert explanation["verdict"] == "delivered"
    assert says(explanation, "or one that was restored from a backup, may lack them")
    assert [(each["column"], each["clientId"]) for each in explanation["row"]["columns"]] == [
        ("n", "alice"),
        ("owner", "alice"),
    ]
    assert abs(explanation["row"]["changedMs"] - wall_ms()) < 60_000
    assert explanation["row"]["bucketKeys"] == explanation["row"]["keysByRules"]


def test_explain_counts_rows_that_were_broadcast_since_the_last_pull(alice, served):
    bob = served.client("bob", alice.gateway)
    with Live(bob) as reader:
        reader.pull()
        assert alice.push(delta("t1", {"owner": "bob"}, client="alice")).ok
        assert [each.op for each in reader.broadcast().deltas] == ["INSERT"]
        explanation = explain(alice, "t1", "bob")
        assert (explanation["verdict"], explanation["nextPull"], explanation["standing"]["connected"]) == (
            "delivered",
            [],
            True,
        )
        assert says(explanation, "it is connected")
        tried = explain(alice, "t1", "bob", claims=json.dumps({"teams": ["red"]}))
        assert tried["nextPull"] == [], "with the claims of its subscription it would have the row too"
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["standing"]["connected"]) == ("delivered", False)
    alice.push(delta("t2", {"owner": "bob"}, client="alice"))
    assert explain(alice, "t2", "bob")["verdict"] == "waiting"


def test_a_row_of_a_page_that_its_client_repeats_is_waiting(alice, served):
    bob = served.client("bob", alice.gateway)
    cursor = bob.pull().json()["serverHlc"]
    alice.push(delta("t1", {"owner": "bob"}, client="alice"))
    bob.pull(cursor)
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["unconfirmed"]) == ("delivered", ["DELETE", "INSERT"])
    assert says(explanation, "has not confirmed that; if its next pull has an earlier cursor")
    sent = bob.pull(cursor).json()
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["standing"]["repeats"]) == ("waiting", 1)
    assert says(explanation, "it has asked 2 times in a row with the same cursor")
    assert explanation["nextPull"] == [each["op"] for each in sent["deltas"]]
    bob.pull(sent["serverHlc"])
    explanation = explain(alice, "t1", "bob")
    assert (explanation["verdict"], explanation["unconfirmed"], explanation["standing"]["repeats"]) == (
        "delivered",
        [],
        0,
    )


def test_a_write_that_lost_the_merge_is_explained_to_its_writer(alice, served):
    row = {"owner": "bob", "title": "new"}
    alice.push(delta("t1", row, client="alice"))
    bob = served.client("bob", alice.gateway)
    cursor = bob.pull().json()["serverHlc"]
    earlier = delta("t1", {"owner": "bob", "title": "old"}, before=row, client="bob", hlc=(wall_ms() - 60_000) << 16)
    assert bob.push(earlier, cursor=cursor).ok
    explanation = explain(alice, "t1", "bob")
    assert says(explanation, "the client wrote to it itself, last at")
    assert says(explanation, "newer values have replaced all of that")
    assert (explanation["verdict"], explanation["nextPull"]) == ("waiting", ["UPDATE"])
    assert not says(explain(alice, "t1", "alice"), "newer values have replaced")


def test_explain_does_not_report_pushes_of_a_client_that_only_pulled(alice, served):
    alice.push(delta("t1", {"owner": "carol"}, client="alice"))
    served.client("bob", alice.gateway).pull()
    assert says(explain(alice, "t1", "bob"), "it last pulled at")
    assert says(explain(alice, "t1", "alice"), "it has pushed, and not pulled")
    assert says(explain(alice, "t1", "dora"), "has not seen the client since it started")
    assert says(explain(alice, "t1", "dora"), "its claims are not known here")
    assert not says(explain(alice, "t1", "bob"), "its claims are not known here")


def test_an_ordering_filter_names_the_operand_that_it_compares(alice):
    by_size = {"name": "small", "tables": [], "filters": [{"column": "size", "op": "lt", "value": "jwt:sizes"}]}
    alice.admin().call("POST", "/admin/sync-rules/{gw}", json={"version": 1, "buckets": [by_size]})
    alice.push(delta("t1", {"size": 7}, client="alice"))
    explanation = explain(alice, "t1", "bob", claims=json.dumps({"sizes": ["5", "9"]}))
    assert says(
        explanation, "column 'size' is '7', which is not lt '5', the client's claim 'sizes', of which the first counts"
    )


def test_an_erased_row_is_explained_as_erased(alice, served):
    alice.push(delta("t1", {"owner": "bob"}, client="alice"))
    served.engine.store.erase_row(alice.gateway, "todos", "t1")
    explanation = explain(alice, "t1", "bob")
    assert says(explanation, "was erased permanently at")
    assert not says(explanation, "is deleted, by client")
    assert explanation["erasedMs"] is not None


@pytest.mark.parametrize(("owner", "shown"), [("bob", True), (None, False)])
def test_the_command_shows_clauses_and_columns_of_an_existing_row(alice, served, owner, shown):
    before = {"owner": "bob"}
    alice.push(delta("t1", before, client="alice"))
    if owner is None:
        served.client("bob", alice.gateway).push(delta("t1", None, before=before, client="bob"))
    result = CliRunner().invoke(
        app,
        ["explain", "todos", "t1", "--client", "bob", "--url", served.url, "-g", alice.gateway],
        env={"LAKESYNC_JWT_SECRET": SECRET},
    )
    assert result.exit_code == 0, result.output
    assert ("owner eq jwt:sub" in result.stdout, "written by" in result.stdout) == (shown, shown)


def test_without_rules_everyone_sees_everything(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    assert says(explain(client, "t1", "anyone"), "everyone sees every row")


def test_explain_changes_nothing_and_shows_no_values(alice, served):
    alice.push(delta("t1", {"owner": "bob", "note": "a private text"}, client="alice"))
    bob = served.client("bob", alice.gateway)
    explanation = explain(alice, "t1", "bob")
    assert "private" not in json.dumps(explanation)
    assert explain(alice, "t1", "bob") == explanation
    assert [each["op"] for each in bob.pull().json()["deltas"]] == ["INSERT"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"clientId": "a", "table": "t"},
        {"clientId": "", "table": "t", "rowId": "r"},
        {"clientId": "a", "table": "t", "rowId": "r", "claims": "{"},
        {"clientId": "a", "table": "t", "rowId": "r", "claims": '{"n": 1}'},
        {"clientId": "a", "table": "t", "rowId": "r", "claims": "[]"},
    ],
)
def test_invalid_parameters_are_rejected(alice, query):
    assert alice.admin().call("GET", "/admin/explain/{gw}", params=query).status_code == 400
    assert alice.call("GET", "/admin/explain/{gw}", params=query).status_code == 403
