import subprocess
import sys
from pathlib import Path

import pytest

WIRE = Path(__file__).parents[3] / "lakesync/wire"


@pytest.mark.parametrize("name", ["lakesync_pb2.py", "lakesync_pb2.pyi"])
def test_the_generated_code_is_that_of_the_proto_file(name, tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, "lakesync/wire/lakesync.proto"], check=True, cwd=WIRE.parents[1])
    assert (tmp_path / "lakesync/wire" / name).read_text() == (WIRE / name).read_text()
