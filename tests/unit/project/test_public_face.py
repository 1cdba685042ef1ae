"""The names that apps may import from `lakesync`; a change of this list changes the contract."""

import importlib.util
import subprocess
import sys

import lakesync

NAMES = {
    "HLC",
    "Action",
    "ActionPush",
    "ActionResponse",
    "ColumnValue",
    "Engine",
    "FlushSettings",
    "LakeSyncError",
    "PushResult",
    "RowDelta",
    "SyncGateway",
    "SyncPull",
    "SyncPush",
    "SyncResponse",
    "SyncRules",
    "TableSchema",
    "TerminalError",
    "TransientError",
    "WideRowThreshold",
    "client",
    "delta_id",
    "extract_delta",
    "jcs",
    "make_action",
    "open",
    "open_gateway",
    "parse_rules",
    "parse_schema",
}


def test_the_public_names_are_unchanged():
    assert set(lakesync.__all__) == NAMES
    assert list(lakesync.__all__) == sorted(
        lakesync.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)
    )


def test_every_public_name_exists_and_has_a_docstring():
    for name in lakesync.__all__:
        assert getattr(lakesync, name).__doc__


def test_importing_the_package_provides_the_client():
    code = "import lakesync; print(lakesync.client.open_async.__name__, 'client' in dir(lakesync))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == (
        "open_async True\n"
    )


def test_importing_the_package_imports_no_framework():
    assert importlib.util.find_spec("hypothesis") is not None
    heavy = "fastapi starlette dagster pyspark hypothesis pyarrow pandas psycopg"
    code = f"import lakesync, sys; print([name for name in {heavy.split()!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
