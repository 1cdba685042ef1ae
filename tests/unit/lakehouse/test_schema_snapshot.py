"""The file of registered tables and connectors."""

import pytest

from lakehouse.schema_snapshot import read_snapshot
from lakesync.model.errors import ConfigurationError


@pytest.mark.parametrize("content", [b"", b"[]", b'{"tables": 1}', b'{"first_day": "\xff"}'])
def test_a_damaged_snapshot_is_reported_with_its_path(tmp_path, content):
    path = tmp_path / "schemas.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"schemas\.json cannot be read: .*; delete it"):
        read_snapshot(path)
