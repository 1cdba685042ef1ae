"""Actions over HTTP."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest
import requests

from gateway.openapi_schemas import JSON, PROTOBUF
from lakesync.actions import ActionLimits
from lakesync.engine import EngineLimits
from lakesync.model.action_handlers import ActionDescriptor
from lakesync.model.types import ActionFailure, ActionPush, ActionResult
from lakesync.wire import actions as wire
from lakesync.wire import json as wire_json
from tests.integration.actions.action_support import Desk, make_action
from tests.integration.gateway_support import DEADLINE, delta, until, wall_ms


@pytest.fixture
def desk():
    return Desk()


@pytest.fixture
def alice(served, desk):
    """A client of a gateway with a desk connector."""
    client = served.client("alice", team=["a", "b"])
    served.engine.gateway(client.gateway).register_action_handler("desk", desk)
    return client


def in_json(action):
    return {
        "actionId": action.action_id,
        "clientId": action.client_id,
        "hlc": str(action.hlc),
        "connector": action.connector,
        "actionType": action.action_type,
        "params": msgspec.json.decode(action.params),
        **({} if action.idempotency_key is None else {"idempotencyKey": action.idempotency_key}),
    }


def ask(client, *actions, prefix=""):
    body = {"clientId": client.client_id, "actions": [in_json(each) for each in actions]}
    return client.call("POST", prefix + "/sync/{gw}/action", json=body)


def now():
    return wall_ms() << 16


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_answer_has_the_form_of_the_reference(alice, desk, prefix):
    good, bad = make_action(now(), key="k"), make_action(now(), connector="nobody")
    answer = ask(alice, good, bad, prefix=prefix)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["results"][0] == {
        "actionId": good.action_id,
        "data": {"n": 1},
        "serverHlc": body["results"][0]["serverHlc"],
    }
    assert set(body["results"][1]) == {"actionId", "code", "message", "retryable"}
    assert body["results"][1]["code"] == "ACTION_NOT_SUPPORTED"
    assert int(body["serverHlc"]) >= int(body["results"][0]["serverHlc"]) > 0
    assert set(body) == {"results", "serverHlc"}
    counted = requests.get(alice.url + "/metrics", timeout=DEADLINE).text
    assert 'lakesync_actions_total{outcome="done"}' in counted
    assert 'lakesync_actions_total{outcome="failed"}' in counted
    ((_, context),) = desk.asked
    assert context.claims["team"] == ["a", "b"]
    assert ask(alice, good, prefix=prefix).json()["results"] == body["results"][:1]
    assert len(desk.asked) == 1


def test_action_ids_of_the_reference_are_accepted(served):
    vectors = json.loads((Path(__file__).parents[2] / "vectors" / "action_id.json").read_text())
    client = served.client("client-a")
    asked = Desk()
    asked.supported_actions = (ActionDescriptor("create_issue", "Make one"),)
    served.engine.gateway(client.gateway).register_action_handler("jira", asked)
    answer = client.call("POST", "/sync/{gw}/action", json={"clientId": "client-a", "actions": vectors})
    results = answer.json()["results"]
    assert [each["actionId"] for each in results] == [each["actionId"] for each in vectors]
    assert all("data" in each for each in results)
    assert len(asked.asked) == len(vectors) >= 3


def test_protobuf_and_json_requests_get_the_same_results(alice, desk):
    good, bad = make_action(now(), {"title": "é"}), make_action(now(), {"title": 5})
    body = wire.encode_push(ActionPush("alice", (good, bad)))
    answer = alice.call("POST", "/sync/{gw}/action", data=body, headers={"Content-Type": PROTOBUF})
    assert answer.headers["content-type"] == PROTOBUF
    done, refused = wire.decode_response(answer.content).results
    assert isinstance(done, ActionResult)
    assert bytes(done.data) == b'{"n":1}'
    assert isinstance(refused, ActionFailure)
    assert (refused.action_id, refused.code) == (bad.action_id, "ACTION_VALIDATION_ERROR")
    assert refused.message == "params.title must be of type string"
    assert ask(alice, good).json()["results"][0]["data"] == {"n": 1}


def test_an_action_with_half_of_a_surrogate_pair_is_rejected_alone(alice, desk):
    """The client computed the id from a text that is not valid Unicode, which no other implementation can repeat."""
    good, cut = make_action(now(), {"title": "a"}), make_action(now(), {"title": "@"})
    body = json.dumps({"clientId": alice.client_id, "actions": [in_json(cut), in_json(good)]}).replace("@", r"\ud83d")
    answer = alice.call("POST", "/sync/{gw}/action", data=body, headers={"Content-Type": JSON})
    rejected, done = answer.json()["results"]
    assert (rejected["actionId"], rejected["code"]) == (cut.action_id, "ACTION_VALIDATION_ERROR")
    assert done["data"] == {"n": 1}
    assert len(desk.asked) == 1


def test_clients_can_list_the_available_actions(alice):
    body = alice.call("GET", "/sync/{gw}/actions").json()
    assert body == {
        "connectors": {
            "desk": [
                {
                    "actionType": "create",
                    "description": "Make one",
                    "paramsSchema": Desk.supported_actions[0].params_schema,
                },
                {"actionType": "plain", "description": "Do anything"},
            ]
        }
    }


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"clientId": "bob"}, 403, "FORBIDDEN"),
        ({"hlc": str((wall_ms() + 3_600_000) << 16)}, 409, "CLOCK_DRIFT"),
        ({"params": ["no", "object"]}, 400, "VALIDATION_ERROR"),
        ({"connector": ""}, 400, "VALIDATION_ERROR"),
        ({"hlc": "-1"}, 400, "VALIDATION_ERROR"),
    ],
)
def test_a_request_with_one_invalid_action_is_rejected_completely(alice, desk, change, status, code):
    good = in_json(make_action(now()))
    body = {"clientId": "alice", "actions": [good, good | change]}
    answer = alice.call("POST", "/sync/{gw}/action", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert "actions[1]" in answer.json()["error"]
    assert desk.asked == []


def test_only_an_admin_reads_the_attempts_at_actions(alice, desk):
    for n in range(5):
        ask(alice, make_action(now() + n, {"title": "s3cret"}))
    ask(alice, make_action(now(), kind="unknown"))
    admin = alice.admin()
    page = admin.call("GET", "/admin/actions/{gw}", params={"limit": 2}).json()["entries"]
    assert [entry["seq"] for entry in page] == [5, 4]
    assert {key: page[0][key] for key in ("clientId", "connector", "actionType", "code", "attempt")} == {
        "clientId": "alice",
        "connector": "desk",
        "actionType": "create",
        "code": "OK",
        "attempt": 1,
    }
    rest = admin.call("GET", "/admin/actions/{gw}", params={"before": 4})
    assert [entry["seq"] for entry in rest.json()["entries"]] == [3, 2, 1]
    assert "s3cret" not in rest.text
    assert alice.call("GET", "/admin/actions/{gw}").status_code == 403
    for query in ({"limit": 0}, {"limit": 1001}, {"before": "x"}, {"before": 0}, {"limit": "9" * 40}):
        assert admin.call("GET", "/admin/actions/{gw}", params=query).status_code == 400


def test_pending_actions_of_a_reference_client_are_answered_with_503_for_a_retry(serve):
    served = serve(EngineLimits(actions=ActionLimits(timeout=0.05)))
    client = served.client("alice")
    free = threading.Event()
    desk = Desk(lambda _action, _context: {"freed": free.wait(DEADLINE)})
    served.engine.gateway(client.gateway).register_action_handler("desk", desk)
    one, other = make_action(now()), make_action(now() + 1)
    answer = ask(client, one, other)
    assert (answer.status_code, answer.json()["code"]) == (503, "STAGING_UNAVAILABLE")
    assert "2 of 2 actions" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) == 1
    body = {"clientId": "alice", "actions": [in_json(one)]}
    answer = client.call("POST", "/sync/{gw}/action", json=body, headers={"X-LakeSync-Client": "lakesync"}).json()
    assert [each["code"] for each in answer["results"]] == ["ACTION_PENDING"]
    free.set()
    again = until(lambda: (found := ask(client, one, other)).ok and found, "both to be done")
    assert [each["data"] for each in again.json()["results"]] == [{"freed": True}] * 2
    assert len(desk.asked) == 2


def test_actions_require_a_token_of_the_gateway(alice, served, desk):
    stranger = served.client("alice")
    body = {"clientId": "alice", "actions": [in_json(make_action(now()))]}
    place = f"{alice.url}/sync/{alice.gateway}/action"
    assert requests.post(place, json=body, timeout=DEADLINE).status_code == 401
    headers = {"Authorization": f"Bearer {stranger.token}"}
    assert requests.post(place, json=body, headers=headers, timeout=DEADLINE).status_code == 403
    assert desk.asked == []


def test_the_write_scope_is_set_at_run_time(served):
    client = served.client("alice")
    admin = client.admin()
    assert admin.call("GET", "/admin/settings/{gw}").json() == {"writeScope": "visible"}
    rules = {
        "version": 1,
        "buckets": [{"name": "own", "tables": [], "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}],
    }
    assert admin.call("POST", "/admin/sync-rules/{gw}", json=rules).status_code == 200
    assert admin.call("POST", "/admin/settings/{gw}", json={"writeScope": "rules"}).json() == {"saved": True}
    assert admin.call("GET", "/admin/settings/{gw}").json() == {"writeScope": "rules"}
    foreign = delta("t1", {"owner": "bob"}, client="alice")
    answer = client.push(foreign, delta("t2", {"owner": "alice"}, client="alice"))
    assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN")
    assert [each["deltaId"] for each in answer.json()["rejected"]] == [foreign["deltaId"]]
    for wrong in ({"writeScope": "all"}, {}, [], {"writeScope": "any", "more": 1}):
        assert admin.call("POST", "/admin/settings/{gw}", json=wrong).status_code == 400
    assert client.call("POST", "/admin/settings/{gw}", json={"writeScope": "any"}).status_code == 403


def ask_in(client, action, in_protobuf):
    """Send an action in protobuf, or in JSON."""
    if not in_protobuf:
        return ask(client, action)
    body = wire.encode_push(ActionPush("alice", (action,)))
    return client.call("POST", "/sync/{gw}/action", data=body, headers={"Content-Type": PROTOBUF})


@pytest.mark.parametrize("in_protobuf", [False, True], ids=["json", "protobuf"])
def test_large_actions_are_decoded_outside_of_the_event_loop(alice, monkeypatch, in_protobuf):
    threads = {}
    name = "decode_push" if in_protobuf else "decode_push_json"
    decode = getattr(wire, name)

    def recorded(body):
        threads[len(body) > 100_000] = threading.current_thread().name
        return decode(body)

    monkeypatch.setattr(wire, name, recorded)
    for text in ("small", "x" * 200_000):
        answer = ask_in(alice, make_action(now(), params={"text": text}), in_protobuf)
        assert answer.status_code == 200
    assert threads[True] != threads[False]


@pytest.mark.parametrize("in_protobuf", [False, True], ids=["json", "protobuf"])
def test_results_of_actions_are_encoded_outside_of_the_event_loop(alice, monkeypatch, in_protobuf):
    threads = []
    in_json = ((wire, "decode_push_json"), (wire_json, "encode_json"))
    for module, name in ((wire, "decode_push"), (wire, "encode_response")) if in_protobuf else in_json:
        function = getattr(module, name)

        def recorded(value, function=function):
            threads.append(threading.current_thread().name)
            return function(value)

        monkeypatch.setattr(module, name, recorded)
    assert ask_in(alice, make_action(now()), in_protobuf).status_code == 200
    in_the_loop, in_a_worker = threads
    assert in_the_loop != in_a_worker
