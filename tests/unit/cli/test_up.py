"""The parts of `lakesync up` that check settings, keep state and report."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack

import jwt
import pytest
from typer.testing import CliRunner

from lakesync import config
from lakesync.cli.app import app
from lakesync.cli.connection import local_url
from lakesync.cli.data_folder import ensure_secrets, with_running_services
from lakesync.cli.up.process import accepts, check_port, free_ports
from lakesync.cli.up.services import MARKER, Service, services
from lakesync.cli.up.stack import run, stop_leftovers
from lakesync.cli.up.supervisor import Display, State
from lakesync.model.errors import ConfigurationError, StartupError


def test_a_port_in_use_is_reported_with_its_option():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"Port {port} on 127.0.0.1 cannot be used.*--port"):
            check_port(port, "127.0.0.1", "--port")


def test_no_outgoing_connection_takes_a_chosen_port():
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server, ExitStack() as open_sockets:
        address = server.getsockname()
        outgoing = {open_sockets.enter_context(socket.create_connection(address)).getsockname()[1] for _ in range(50)}
        chosen = free_ports(200)
    assert len(set(chosen)) == 200
    assert max(chosen) < min(outgoing)


def test_two_processes_never_choose_the_same_port():
    program = "from lakesync.cli.up.process import free_ports; print(*free_ports(300), flush=True); input()"
    with ExitStack() as running:
        choosers = [
            running.enter_context(
                subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(2)
        ]
        chosen = [set(chooser.stdout.readline().split()) for chooser in choosers]
        for chooser in choosers:
            chooser.communicate(b"\n")
    assert [len(each) for each in chosen] == [300, 300]
    assert chosen[0].isdisjoint(chosen[1])


def test_a_server_can_listen_on_a_chosen_port():
    (port,) = free_ports(1)
    check_port(port, "127.0.0.1", "--port")
    with socket.create_server(("127.0.0.1", port)):
        assert accepts(port)


def test_too_few_free_ports_are_reported():
    with pytest.raises(StartupError, match=r"20000 free ports are needed, but .* are free"):
        free_ports(20_000)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_reported(host):
    with pytest.raises(StartupError, match=rf"Cannot listen on {host}: .*address of this machine"):
        check_port(0, host, "--port")


def test_an_ipv6_address_is_reported_on_a_machine_without_ipv6(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr("socket.socket", refuse)
    with pytest.raises(StartupError, match="Cannot listen on ::1: Address family not supported"):
        check_port(0, "::1", "--port")


def test_a_full_disk_is_reported_before_anything_starts(conf, monkeypatch):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(StartupError, match="is full: 1 MB are free"):
        run(conf, Display(json_events=False))


@pytest.mark.parametrize("name", ["a,b", "my%20data"])
def test_a_path_that_spark_or_dagster_would_read_as_another_is_rejected(conf, tmp_path, name):
    with pytest.raises(StartupError, match="has a comma, or % with two hexadecimal digits"):
        run(conf.replace(data_dir=tmp_path / name), Display(json_events=False))
    assert not (tmp_path / name).exists()


def test_services_outlive_a_disk_that_becomes_full(conf, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Shown(Display):
        def note(self, text):
            notes.append(text)

        def change(self, change):
            states.append(change.state)
            match change.state:
                case State.READY if states.count(State.READY) == 1:
                    assert json.loads((conf.data_dir / "up.json").read_bytes())["ready"]
                    monkeypatch.setattr("lakesync.cli.up.stack.replace_private_file", full)
                    os.kill(change.pid, signal.SIGKILL)
                case State.READY:
                    stop.set()

    notes, states, stop = [], [], threading.Event()
    service = Service("gateway", (sys.executable, "-c", "import signal; signal.pause()"), lambda: True)
    monkeypatch.setattr("lakesync.cli.up.stack.services", lambda *_, **__: [service])
    monkeypatch.setattr("lakesync.cli.up.stack.stop_event", lambda: stop)
    run(conf.replace(spark={"remote": "sc://localhost:1"}), Shown(json_events=False))
    started = [State.STARTING, State.READY]
    assert states == [*started, State.WAITING, *started, State.STOPPED]
    assert notes[0] == f"up.json in {conf.data_dir} is not up to date: No space left on device"
    assert not (conf.data_dir / "up.json").exists()


def test_secrets_are_generated_once(tmp_path):
    made = ensure_secrets(tmp_path)
    assert ensure_secrets(tmp_path) == made
    assert len(set(made.values())) == 4
    assert (tmp_path / "secrets.json").stat().st_mode & 0o077 == 0


def test_a_missing_secret_is_added_to_the_others(tmp_path):
    (tmp_path / "secrets.json").write_text('{"secret_key": "kept", "of a later version": "kept too"}')
    made = ensure_secrets(tmp_path)
    assert (made["secret_key"], made["of a later version"]) == ("kept", "kept too")
    assert {"jwt_secret", "service_token", "spark_token"} < made.keys()
    assert ensure_secrets(tmp_path) == made
    assert (tmp_path / "secrets.json").stat().st_mode & 0o077 == 0


def test_secrets_survive_a_full_disk(tmp_path, monkeypatch):
    (tmp_path / "secrets.json").write_text('{"secret_key": "kept"}')

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            ensure_secrets(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["secrets.json"]
    assert ensure_secrets(tmp_path)["secret_key"] == "kept"


def test_damaged_secrets_are_not_replaced(tmp_path):
    (tmp_path / "secrets.json").write_text('{"secret_key": "ke')
    with pytest.raises(ConfigurationError, match=r"secrets\.json contains no secrets: .* Restore it from a backup"):
        ensure_secrets(tmp_path)
    assert (tmp_path / "secrets.json").read_text() == '{"secret_key": "ke'


def test_settings_are_completed_with_a_running_up(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    settings = config.load({"data_dir": tmp_path, "secret_key": "c" * 32})
    assert with_running_services(settings) == settings
    secrets = ensure_secrets(tmp_path)
    spark = {"remote": "sc://localhost:15002/", "token": "t"}
    (tmp_path / "up.json").write_text(json.dumps({"gateway": {"url": "http://127.0.0.1:1"}, "spark": spark}))
    completed = with_running_services(settings)
    assert (completed.gateway.url, completed.spark.remote) == ("http://127.0.0.1:1", spark["remote"])
    assert [each.get_secret_value() for each in (completed.spark.token, completed.service_token)] == [
        "t",
        secrets["service_token"],
    ]
    assert completed.secret_key == settings.secret_key
    elsewhere = settings.replace(gateway={"url": "http://other"}, spark={"remote": "sc://other:1"})
    completed = with_running_services(elsewhere)
    assert (completed.gateway.url, completed.spark) == ("http://other", elsewhere.spark)


def test_a_separate_pipeline_starts_no_gateway_and_requires_a_connection_to_staging(conf, tmp_path):
    names = {each.name for each in services(conf, None, tmp_path / "workspace.yaml", with_gateway=False)}
    assert names == {"code_server", "dagster", "daemon", "runs", "recovery"}
    with pytest.raises(ConfigurationError, match="LAKESYNC_SERVICE_TOKEN is not set"):
        run(conf, Display(json_events=False), with_gateway=False)
    assert not (conf.data_dir / "secrets.json").exists()


def test_a_server_on_all_addresses_is_reached_on_loopback():
    assert local_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert local_url("::", 80) == "http://[::1]:80"
    assert local_url("10.1.2.3", 80) == "http://10.1.2.3:80"


def test_no_spark_is_started_if_an_external_one_is_configured(conf, tmp_path):
    names = {service.name for service in services(conf, None, tmp_path / "workspace.yaml")}
    assert names == {"gateway", "code_server", "dagster", "daemon", "runs", "recovery"}


def test_only_processes_of_the_data_folder_are_stopped(tmp_path):
    def child(folder):
        code = "import signal; print(flush=True); signal.pause()"
        process = subprocess.Popen([sys.executable, "-c", code], env={MARKER: str(folder)}, stdout=subprocess.PIPE)
        process.stdout.readline()
        return process

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    by_other_paths = [tmp_path / "link", tmp_path / "b" / ".." / "a"]
    with (
        child(tmp_path / "a") as mine,
        child(by_other_paths[0]) as linked,
        child(by_other_paths[1]) as dotted,
        child(tmp_path / "b") as other,
        child(tmp_path / "gone") as gone,
    ):
        assert {*stop_leftovers(tmp_path / "a")} == {mine.pid, linked.pid, dotted.pid}
        survived = [each.poll() is None for each in (other, gone)]
        for each in (other, gone):
            each.kill()
        assert survived == [True, True]


def test_events_are_json_lines_on_stdout(capsys):
    text = "stopped /data/[copy]"  # rich would read brackets as markup
    Display(json_events=True).note(text)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"event": "note", "text": text}
    assert text in captured.err


def test_a_token_is_signed_with_the_folders_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    secret = ensure_secrets(tmp_path)["jwt_secret"]
    options = ["--gateway", "g", "--client", "c", "--claim", "carrier=AA", "--claim", "carrier=UA", "--claim", "x=1"]
    result = CliRunner().invoke(app, ["token", "create", *options, "--data", str(tmp_path)])
    claims = jwt.decode(result.stdout.strip(), secret, algorithms=["HS256"])
    assert (claims["sub"], claims["gw"], claims["role"]) == ("c", "g", "client")
    assert (claims["carrier"], claims["x"]) == (["AA", "UA"], "1")


def test_the_command_line_imports_no_framework():
    code = "import sys, lakesync.cli.app, lakesync.cli.up.stack; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"dagster", "pyspark", "fastapi", "starlette", "pandas"} & set(modules)


def test_up_rejects_a_gateway_that_flushes_by_itself(tmp_path, monkeypatch):
    """A batch that one of them received would count as received by both."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    uri = "postgresql://ann:hunter2@db/app"
    configured = config.load({"data_dir": tmp_path / "data", "flush": {"to_uri": uri}})
    with pytest.raises(ConfigurationError, match="has a pipeline") as raised:
        run(configured, Display(json_events=True))
    assert "hunter2" not in str(raised.value)
    assert not (tmp_path / "data").exists()
