"""Files of a table's folder are found under the paths that Iceberg's metadata names, which are not percent-encoded."""

from __future__ import annotations

import pytest

from lakehouse.erasure.leftovers import delete_files, unreferenced_files


@pytest.mark.parametrize("folder", ["plain", "a b", "a%41b", "a#b", "a?b"])
def test_files_that_no_snapshot_references_are_found_in_a_folder_with_any_name(tmp_path, folder):
    data = tmp_path / folder / "rejected" / "data"
    data.mkdir(parents=True)
    kept, orphan = data / "kept.parquet", data / "orphan.parquet"
    for file in (kept, orphan):
        file.touch()
    location = f"file://{data.parent}"
    found = unreferenced_files(location, [f"file:{kept}"])
    assert found == [str(orphan)]
    delete_files(location, found)
    assert sorted(data.iterdir()) == [kept]
