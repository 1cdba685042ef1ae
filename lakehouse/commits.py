"""Commits of files that tasks wrote, exactly on top of the snapshot that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from sqlalchemy.exc import OperationalError

from lakehouse.row_delta import RowDelta

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

_LOCKED = "database is locked"
"""What SQLite says where a statement or a commit was not done."""


class MovedError(Exception):
    """The table is no longer at the snapshot that was read, or was being committed to: nothing was committed."""


def commit_files(
    table: Table,
    snapshot: int | None,
    added: Collection[DataFile],
    removed: Collection[DataFile] = (),
    properties: Mapping[str, str] | None = None,
    deletes: Collection[DataFile] = (),
) -> int:
    """Add files to a table, and remove others, in one commit; the id of its snapshot.

    Unlike pyiceberg's own commit it is never tried again on top of another snapshot: whoever reads that a batch is not
    in `snapshot` may add it to that one alone.

    Args:
        table: as it was loaded.
        snapshot: that it must be at; None where it is empty.
        added: as `table_files.data_files` makes them.
        removed: as a scan of the table found them.
        properties: of the table, set in the same commit.
        deletes: files of the places of rows that are no more, with `added` alone.

    Raises:
        MovedError: somebody has committed since `snapshot`, or holds a catalogue in a file for seconds.
        Exception: whatever else the catalogue says; whether it was committed, the table tells.
    """
    name, current = ".".join(table.name()), table.current_snapshot()
    if (current.snapshot_id if current else None) != snapshot:
        raise MovedError(f"{name} was read at {snapshot} and is at {current.snapshot_id if current else None}")
    transaction = _AsRead(table)
    producer: _MergeAppendFiles | _OverwriteFiles
    if removed:
        producer = transaction.update_snapshot().overwrite()
    elif deletes:
        producer = RowDelta(transaction, deletes)
    else:
        producer = transaction.update_snapshot().merge_append()
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    changes, requirements = producer._commit()  # noqa: SLF001 the public one tries again on top of what it has not read
    if properties:
        changes = (*changes, SetPropertiesUpdate(updates=dict(properties)))
    try:
        table._do_commit(changes, (*requirements, AssertTableUUID(uuid=table.metadata.table_uuid)))  # noqa: SLF001
    except (CommitFailedException, OperationalError) as error:
        if isinstance(error, OperationalError) and _LOCKED not in str(error):
            raise
        producer._clean_all_uncommitted()  # noqa: SLF001 both errors say that nobody will read them
        raise MovedError(f"{name} was not committed on top of {snapshot}: {error}") from error
    return producer.snapshot_id


def set_properties(table: Table, properties: Mapping[str, str]) -> None:
    """Set properties of a table, in a commit without a snapshot.

    Raises:
        MovedError: somebody committed at the same moment, or holds a catalogue in a file for seconds.
    """
    changes = (SetPropertiesUpdate(updates=dict(properties)),)
    try:
        table._do_commit(changes, (AssertTableUUID(uuid=table.metadata.table_uuid),))  # noqa: SLF001 as above
    except (CommitFailedException, OperationalError) as error:
        if isinstance(error, OperationalError) and _LOCKED not in str(error):
            raise
        raise MovedError(f"{'.'.join(table.name())} was not given properties: {error}") from error


class _AsRead(Transaction):
    """Stages nothing, so what it has of the table is the table's own: a copy of some thousand snapshots takes seconds,
    and a commit would make a dozen.
    """

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata
