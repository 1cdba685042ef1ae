"""A commit of rows beside a table's files, with the places of rows in those that are no more: a merge on read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestWriterV2
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Transaction

MANIFESTS = 20
"""Of deletes, from which they are put together in one: each is read by whoever plans a scan."""


class RowDelta(_MergeAppendFiles):
    """What Iceberg calls so, which pyiceberg reads but does not write.

    The caller sees to it that the table is at the snapshot in which the places were found.
    """

    def __init__(self, transaction: Transaction, deletes: Collection[DataFile]) -> None:
        super().__init__(Operation.OVERWRITE, transaction, transaction._table.io)  # noqa: SLF001
        self._deletes = list(deletes)

    def _manifests(self) -> list[ManifestFile]:
        found = super()._manifests()
        older = [each for each in found if each.content == ManifestContent.DELETES]
        joined = older if len(older) >= MANIFESTS else []
        self._added_data_files.extend(self._deletes)  # counted by the summary, which is made after this
        return [*(each for each in found if each not in joined), self._manifest_of_deletes(joined)]

    def _manifest_of_deletes(self, joined: Collection[ManifestFile]) -> ManifestFile:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeletesWriter(metadata.spec(), self.schema(), output, self._snapshot_id, self._compression) as writer:
            for deletes in self._deletes:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=deletes,
                )
                writer.add_entry(entry)
            for manifest in joined:
                for entry in self.fetch_manifest_entry(manifest):
                    writer.existing(entry)
        return writer.to_manifest_file()


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
