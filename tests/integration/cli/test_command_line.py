"""Commands with a real gateway in another process, in a project that `lakesync init` wrote."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakesync import config
from lakesync.cli.app import app
from lakesync.cli.exit_codes import ExitCode
from lakesync.cli.local.doctor_checks import ports
from lakesync.cli.up.process import free_ports
from tests.cli_page import BLOCKS
from tests.integration.gateway_support import DEADLINE, SECRET, SERVICE, delta, sign

TODOS = "id,title,done,owner,team\nt1,Buy milk,false,alice,red\nt2,Call bob,true,alice,\n"
CHANGED = '{"row_id": "t1", "done": true}\n'
ROWS = '{"table": "todos", "rowId": "t1", "values": {"owner": "alice", "team": "red"}}\n'


def command(*words):
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def lines(*words):
    """Return the JSON objects that a command prints, which must succeed."""
    result = command(*words, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def project(tmp_path_factory, spawn_for_module):
    """A project of `lakesync init` with a running gateway, which commands find through the current folder."""
    folder = tmp_path_factory.mktemp("project")
    before, here = dict(os.environ), Path.cwd()
    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        del os.environ[name]
    assert command("init", "--gateway", "shop").exit_code == 0
    (folder / "todos.csv").write_text(TODOS)
    (folder / "todos.jsonl").write_text(CHANGED)
    (folder / "rows.jsonl").write_text(ROWS)
    served = spawn_for_module(
        LAKESYNC_CONFIG=str(folder / "lakesync.toml"), LAKESYNC_DATA_DIR=str(folder / "lakesync-data")
    )
    os.environ.update(
        LAKESYNC_JWT_SECRET=SECRET, LAKESYNC_SERVICE_TOKEN=SERVICE, LAKESYNC_GATEWAY_URL=served.url, XDG_CONFIG_HOME="x"
    )
    yield served
    os.chdir(here)
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("project")
def test_commands_and_their_children_reach_this_machine_in_spite_of_a_proxy():
    variables = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    variables |= {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": "internal.test"}
    code = (
        "import os, lakesync.cli, atexit; atexit.register(lambda: print(os.environ['no_proxy'])); lakesync.cli.main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "status"], env=variables, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "internal.test,localhost,127.0.0.1,::1"


@pytest.fixture(scope="module")
def played(project):
    """Run the examples of docs/cli.md that call a gateway; return the result of each line."""
    Path("drafts.json").write_text('{"table": "drafts", "columns": [{"name": "text", "type": "string"}]}')
    assert command("schema", "apply", "drafts.json").exit_code == 0
    result = {}
    for heading in ("Data in and out", "Why does a client lack a row?", "Rules", "Operating"):
        for line in BLOCKS[heading]:
            words = shlex.split(line)[1:]
            if words[0] == "tail":
                words += ["--seconds", str(DEADLINE)]
            result[line] = command(*words)
    return result


EXAMPLES = [
    line
    for heading in ("Data in and out", "Why does a client lack a row?", "Rules", "Operating")
    for line in BLOCKS[heading]
]


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_examples_of_the_cli_page_work(played, line):
    result = played[line]
    assert result.exit_code == 0, result.output
    assert "Traceback" not in result.output


def test_the_examples_print_what_the_cli_page_shows(played):
    assert "accepted  2" in played["lakesync push todos.csv --table todos --id id --client alice"].stdout
    pulled = played["lakesync pull --client alice --table todos --json"].stdout.splitlines()
    assert {json.loads(line)["rowId"] for line in pulled} == {"t1", "t2"}
    assert {len(json.loads(line)["deltaId"]) for line in pulled if json.loads(line)["op"] != "DELETE"} == {64}
    assert len(played["lakesync tail --client alice --from-start --limit 2"].stdout.splitlines()) == 2
    explained = played["lakesync explain todos t1 --as sub=bob,team=red"].stdout
    assert explained.startswith("waiting: ")
    assert "team in jwt:team" in explained
    assert "2 deltas" in played["lakesync status"].stdout or "3 deltas" in played["lakesync status"].stdout
    assert '["t1","t2"]' in played["lakesync rules test --as sub=alice --list"].stdout
    assert "title string" in played["lakesync schema list"].stdout


def test_applying_the_schema_of_a_table_in_no_bucket_warns(played):
    result = command("schema", "apply", "drafts.json")
    assert "no bucket of the sync rules contains drafts, so no client sees its rows" in result.stderr


def test_a_rules_diff_lists_gains_and_losses_of_every_known_client(played, project, tmp_path):
    assert project.client("walt", "shop").pull().ok
    lines("push", _file(tmp_path, '{"row_id": "w1", "owner": "walt"}'), "--table", "todos", "--client", "walt")
    assert lines("rules", "diff", "rules.json") == []
    nobody = {"version": 2, "buckets": [{"name": "none", "tables": ["todos"], "filters": [_filter("owner", "nobody")]}]}
    found = lines("rules", "diff", _file(tmp_path, json.dumps(nobody), "none.json"), "--list")
    assert {each["as"]: each["removedIds"] for each in found}["walt"] == ["w1"]
    assert all(each["after"] == each["added"] == 0 for each in found)


def test_doctor_recognises_the_port_of_this_gateway(project, monkeypatch):
    monkeypatch.setenv("LAKESYNC_GATEWAY_PORT", project.url.rpartition(":")[2])
    monkeypatch.setenv("LAKESYNC_DAGSTER_PORT", "0")
    assert ports(config.load()).state == "ok"
    monkeypatch.setenv("LAKESYNC_GATEWAY_URL", "http://127.0.0.1:1")
    assert ports(config.load()).state == "warning"


def test_rejected_deltas_are_reported_and_the_others_are_pushed(played, tmp_path):
    mixed = '{"row_id": "m1", "owner": "alice"}\n{"row_id": "m2", "owner": "bob"}\n'
    result = command("push", _file(tmp_path, mixed), "--table", "todos", "--client", "alice", "--json")
    assert result.exit_code == ExitCode.PARTIAL
    assert json.loads(result.stdout) == {"accepted": 1, "rejected": 1}
    refused = json.loads(result.stderr)["rejected"]
    assert (refused["rowId"], refused["table"], refused["code"]) == ("m2", "todos", "FORBIDDEN")
    result = command("push", _file(tmp_path, mixed.splitlines()[1]), "--table", "todos")
    assert result.exit_code == ExitCode.INVALID
    assert "rejected row 'm2' of todos: FORBIDDEN" in result.stderr
    assert "the rules do not show these rows to client 'lakesync-cli'" in result.stderr
    assert "--client ID, and --claim NAME=VALUE" in result.stderr
    team = _file(tmp_path, "".join(f'{{"row_id": "blue{number}", "team": "blue"}}\n' for number in range(25)))
    result = command("push", team, "--table", "todos", "--client", "bea")
    assert (result.exit_code, result.stderr.count("rejected row")) == (ExitCode.INVALID, 20)
    assert "rejected 25 in total (25 FORBIDDEN)" in result.stderr
    assert command("push", team, "--table", "todos", "--client", "bea", "--claim", "team=blue").exit_code == 0
    result = command(
        "push", _file(tmp_path, '{"row_id": 1, "done": "perhaps"}'), "--table", "todos", "--client", "alice"
    )
    assert result.exit_code == ExitCode.INVALID


def test_a_large_file_is_pushed_in_several_requests(played, tmp_path):
    wide = [f"wide{number},{'x' * 300_000},ann" for number in range(5)]
    file = _file(tmp_path, "\n".join(["id,title,owner", *wide]), "wide.csv")
    result = command("push", file, "--table", "todos", "--id", "id", "--client", "ann")
    assert (result.exit_code, result.stdout.split()[1]) == (0, "5"), result.output
    file = _file(tmp_path, "\n".join(["id,title,owner", "2024,2024,ann", *wide, "w9,a,ann,b"]), "wide.csv")
    result = command("push", file, "--table", "todos", "--id", "id", "--client", "ann", "--update")
    assert result.exit_code == ExitCode.INVALID
    assert "wide.csv, line 8: more fields" in result.stderr
    assert " deltas were accepted before this" in result.stderr


def test_pulled_deltas_can_be_pushed_again_without_effect(played, tmp_path):
    pulled = command("pull", "--client", "alice", "--json").stdout
    own = [line for line in pulled.splitlines() if json.loads(line)["op"] != "DELETE"]
    result = lines("push", _file(tmp_path, "\n".join(own)), "--client", "alice")
    assert (result[0]["accepted"], result[0]["rejected"]) == (len(own), 0)


def test_tail_prints_changes_as_they_happen(played, tmp_path):
    """In another process: a line is printed while the command still runs."""
    (tmp_path / "token").write_text(sign("tess", "shop", team="red"))
    words = ["tail", "--token-file", str(tmp_path / "token"), "--limit", "1", "--seconds", str(DEADLINE), "--json"]
    code = "from lakesync.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert b"waiting for changes" in tail.stderr.readline()
        row = _file(tmp_path, '{"row_id": "live", "owner": "alice", "team": "red"}')
        lines("push", row, "--table", "todos", "--client", "alice")
        assert json.loads(tail.stdout.readline())["rowId"] == "live"
        assert tail.wait(DEADLINE) == 0


def test_a_tail_continues_after_its_gateway_was_killed(spawn, tmp_path):
    port = str(free_ports(1)[0])
    first = spawn(LAKESYNC_GATEWAY_PORT=port)
    assert first.client("alice").push(delta("t1", {"n": 1}, client="alice")).status_code == 200
    (tmp_path / "token").write_text(sign("tess"))
    words = ["tail", "--url", first.url, "--token-file", str(tmp_path / "token"), "--from-start", "--json"]
    code = "from lakesync.cli import main; main()"
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        first_line = tail.stdout.readline()
        assert first_line, tail.stderr.read()
        assert json.loads(first_line)["rowId"] == "t1"
        first.process.kill()
        assert b"retrying in" in tail.stderr.readline()
        second = spawn(LAKESYNC_GATEWAY_PORT=port)
        assert second.client("alice").push(delta("t2", {"n": 2}, client="alice")).status_code == 200
        later = tail.stdout.readline()
        assert later, tail.stderr.read()
        assert json.loads(later)["rowId"] == "t2"
        tail.kill()


def test_a_delta_is_traced_to_the_clients_with_it(played, project, tmp_path):
    assert project.client("alice", "shop").pull().ok
    lines("push", _file(tmp_path, '{"row_id": "tr1", "owner": "tracy"}'), "--table", "todos", "--client", "tracy")
    (delta,) = [json.loads(line) for line in command("pull", "--client", "tracy", "--json").stdout.splitlines()][-1:]
    (result,) = lines("trace", delta["deltaId"][:12])
    assert (result["clientId"], result["rowId"], result["batchId"]) == ("import:tracy", "tr1", None)
    assert result["holders"]["ownsColumns"] == ["owner"]
    verdicts = {each["clientId"]: each["verdict"] for each in result["holders"]["clients"]}
    assert (verdicts["tracy"], verdicts["alice"]) == ("waiting", "hidden")
    (why,) = (each["why"] for each in result["holders"]["clients"] if each["clientId"] == "alice")
    assert "column 'owner' is 'tracy', which is not eq 'alice'" in why
    alone = command("trace", delta["deltaId"], "--url", "http://127.0.0.1:1")
    assert alone.exit_code == ExitCode.PARTIAL
    assert "not flushed yet" in alone.stdout


def test_the_token_decides_which_commands_are_permitted(played, monkeypatch, tmp_path):
    monkeypatch.setenv("LAKESYNC_TOKEN", sign("carl", "shop"))
    assert command("pull").exit_code == 0
    denied = command("status")
    assert denied.exit_code == ExitCode.AUTH
    assert "role 'admin'" in denied.stderr
    assert command("pull", "--client", "alice").exit_code == ExitCode.AUTH
    (tmp_path / "token").write_text(sign("ops", "shop", role="admin", secret="another secret, which nobody knows of"))
    wrong = command("status", "--token-file", tmp_path / "token")
    assert wrong.exit_code == ExitCode.AUTH
    assert "another key signed it" in wrong.stderr


def test_an_undeclared_gateway_is_not_created(played):
    result = command("status", "--gateway", "elsewhere")
    assert result.exit_code == ExitCode.FAILED
    assert "declare it" in result.stderr


def _filter(column, value):
    return {"column": column, "op": "eq", "value": value}


def _file(folder, text, name="rows.jsonl"):
    path = folder / name
    path.write_text(text)
    return path
