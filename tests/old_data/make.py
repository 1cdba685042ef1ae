"""Store this version's data, which every later version must open: `python -m tests.old_data.make VERSION`.

It writes into `tests/old_data/VERSION`: the folder of a project in which `lakesync up` ran, a dump of a store on
Postgres, and the rows that both have. Run it once a release, on the commit that is released.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import lakesync
from lakesync import SyncPush, parse_rules, parse_schema
from tests.e2e.up_support import COMMAND, Up
from tests.old_data.place import FIXTURES, sole_user
from tests.postgres_server import postgres_program, postgres_server

RULES = Path(lakesync.__file__).parent / "cli" / "local" / "new_project" / "rules.json"
TODOS = {"table": "todos", "columns": [{"name": "title", "type": "string"}, {"name": "owner", "type": "string"}]}
LEFT_OUT = {"logs", "dagster", "spark", "up.json", "up.lock", "secrets.json", "owner.lock", ".gitignore"}


def main(version: str) -> None:
    """Create the fixtures of a version."""
    target = FIXTURES / version
    target.mkdir()
    with sole_user() as folder:
        rows = use_a_project(folder)
        with tarfile.open(target / "project.tar.xz", "w:xz") as archive:
            for path in sorted(folder.iterdir()):
                archive.add(path, path.name, filter=without_traces)
        dump_postgres(folder / "lakesync-data" / "staging", target / "postgres.sql")
    (target / "expected.json").write_text(json.dumps(rows, indent=1) + "\n")
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:>9,} {path}")


def use_a_project(folder: Path) -> dict[str, dict[str, str]]:
    """Let two clients write, flush a part, and leave an edit in alice's file; return the rows of each client."""
    up = Up(folder / "lakesync-data")
    subprocess.run([*COMMAND, "init", "--gateway", "shop"], cwd=folder, check=True, capture_output=True)
    up.config = str(folder / "lakesync.toml")
    try:
        url = up.start().report()["gateway"]["url"]

        def opened(name: str) -> lakesync.client.Client:
            token = up.ask("token", "create", "--client", name).strip()
            return lakesync.open(folder / f"{name}.db", url=url, gateway="shop", token=token, schemas=[TODOS])

        with opened("alice") as alice, opened("bob") as bob:
            ids = [alice["todos"].insert(title=f"todo {number}", owner="alice") for number in range(8)]
            bob["todos"].insert(title="of bob", owner="bob")
            alice.sync()
            bob.sync()
            alice["todos"].update(ids[0], title="changed")
            alice["todos"].delete(ids[1])
            alice.sync()
            up.ask("flush")
            alice["todos"].update(ids[2], title="changed after the flush")
            alice.sync()
            rows = {
                name: {row["row_id"]: row["title"] for row in client.query("SELECT row_id, title FROM todos")}
                for name, client in (("alice", alice), ("bob", bob))
            }
            alice["todos"].insert(title="not sent yet", owner="alice")
        for file in folder.glob("bob.db*"):
            file.unlink()
        up.process.terminate()
        assert up.process.wait(240) == 0, up.log()
    finally:
        up.end()
    (folder / "up.log").unlink()
    return rows


def without_traces(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Remove logs, secrets and user names."""
    if set(Path(member.name).parts) & LEFT_OUT:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def dump_postgres(staging: Path, target: Path) -> None:
    """Push each client's visible rows in the SQLite store into one on Postgres, and dump that."""
    with lakesync.open_gateway("shop", staging=staging, background=False) as gateway:
        seen = {name: gateway.submit_peek({"sub": name}, None, 1000).result().deltas for name in ("alice", "bob")}
    with postgres_server() as server:
        schema, rules = parse_schema(TODOS), parse_rules(json.loads(RULES.read_text()))
        with lakesync.open_gateway(
            "shop", staging=server.uri, schemas=[schema], rules=rules, background=False
        ) as gateway:
            for name, deltas in seen.items():
                gateway.handle_push(SyncPush(name, tuple(each for each in deltas if each.op != "DELETE")))
        command = [postgres_program("pg_dump"), "--no-owner", "--schema", "lakesync", server.uri]
        target.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main(sys.argv[1])
