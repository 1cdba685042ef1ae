"""`lakesync gateway`: the gateway alone."""

import sys

import jwt
import requests

from lakesync.cli.up.process import Process, free_ports


def test_the_gateway_command_serves_and_exits_cleanly(tmp_path):
    (port,) = free_ports(1)
    secret = "s" * 32
    command = [sys.executable, "-c", "from lakesync.cli import main; main()"]
    options = ["--port", str(port), "--staging", f"sqlite://{tmp_path}/staging"]
    environment = {"LAKESYNC_JWT_SECRET": secret, "LAKESYNC_CONFIG": "", "LAKESYNC_DATA_DIR": str(tmp_path)}
    gateway = Process("gateway", [*command, "gateway", *options], environment, tmp_path / "log")
    url = f"http://127.0.0.1:{port}"

    def ready():
        try:
            return requests.get(f"{url}/ready", timeout=2).ok
        except requests.RequestException:
            return False

    try:
        gateway.wait_ready(ready, timeout=240)
        assert requests.get(f"{url}/v1/sync/g/pull?since=0&clientId=c", timeout=60).status_code == 401
        token = jwt.encode({"sub": "c", "gw": "g", "role": "client", "exp": 4_000_000_000}, secret, algorithm="HS256")
        answer = requests.get(
            f"{url}/v1/sync/g/pull?since=0&clientId=c", headers={"Authorization": f"Bearer {token}"}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        assert (tmp_path / "staging").is_dir()
    finally:
        gateway.stop(grace=60)
    assert gateway.exit_code == 0, gateway.last_lines()
