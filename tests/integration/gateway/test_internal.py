"""The pipeline's route to the store, over loopback with the service token."""

from __future__ import annotations

import pytest
import requests

from lakesync.model.errors import AuthError, IntegrityError, NotFoundError
from lakesync.staging.remote import RemoteStore
from tests.integration.gateway_support import DEADLINE, SERVICE, delta, sign


def call(served, method: str, token: str | None = SERVICE, **arguments):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return requests.post(f"{served.url}/internal/staging/{method}", json=arguments, headers=headers, timeout=DEADLINE)


def test_a_batch_is_planned_confirmed_and_trimmed(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}), delta("t2", {"n": 2}))
    assert client.gateway in call(served, "gateways").json()
    (waiting,) = [each for each in call(served, "backlog").json() if each["gateway"] == client.gateway]
    shard = waiting["shard"]
    batch = call(served, "plan", gateway=client.gateway, shard=shard, max_deltas=100).json()
    assert batch["deltas"] == 2
    (day,) = call(served, "ledger", gateway=client.gateway).json()
    wrong = call(served, "confirm", batch_id=batch["batch_id"], deltas=1, id_sum=day["id_sum"])
    assert wrong.status_code == 500
    assert wrong.json()["code"] == "INTEGRITY_ERROR"
    right = call(served, "confirm", batch_id=batch["batch_id"], deltas=2, id_sum=day["id_sum"])
    assert right.status_code == 200
    assert call(served, "trim", gateway=client.gateway, shard=shard).status_code == 200
    text = requests.get(served.url + "/metrics", timeout=DEADLINE).text
    (flushed,) = [
        line
        for line in text.splitlines()
        if line.startswith(f'lakesync_last_flush_timestamp_seconds{{gateway="{client.gateway}"')
    ]
    assert float(flushed.split()[1]) > 1.7e9
    assert call(served, "confirm", batch_id="none", deltas=1, id_sum=1).status_code == 404


@pytest.mark.parametrize("token", [None, "another token", sign(role="admin")])
def test_requests_without_the_service_token_are_rejected(served, token):
    answer = call(served, "gateways", token)
    assert answer.status_code == 401
    assert answer.json()["code"] == "AUTH_ERROR"


def test_without_a_service_token_the_route_is_closed(serve):
    assert call(serve(service_token=None), "gateways").status_code == 403


@pytest.mark.parametrize("method", ["close", "open", "submit", "__init__", "nothing"])
def test_methods_outside_of_the_pipelines_protocol_are_rejected(served, method):
    answer = call(served, method)
    assert 400 <= answer.status_code < 500


def test_malformed_arguments_are_rejected(served):
    assert call(served, "plan", gateway=1).status_code == 400


def test_the_remote_store_returns_values_and_raises_the_stores_errors(served):
    client = served.client()
    client.push(delta("t1", {"n": 1}))
    store = RemoteStore(served.url, SERVICE)
    (waiting,) = [each for each in store.backlog() if each.gateway == client.gateway]
    batch = store.plan(client.gateway, waiting.shard, 100)
    assert batch is not None
    with pytest.raises(IntegrityError):
        store.confirm(batch.batch_id, 2, 0)
    with pytest.raises(NotFoundError):
        store.confirm("none", 1, 0)
    (day,) = store.ledger(client.gateway)
    store.confirm(batch.batch_id, day.count, day.id_sum)
    assert store.gateway_config(client.gateway).rules is None
    with pytest.raises(AuthError):
        RemoteStore(served.url, "another").gateways()
    store.close()
