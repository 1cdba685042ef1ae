"""The folder in which a replacement of a store is built."""

from __future__ import annotations

from pathlib import Path

from lakesync.model.errors import StagingUnavailableError


def draft_of(folder: Path) -> Path:
    """Return the folder in which a store's replacement is built."""
    return folder.with_name(f"{folder.name}.rebuilding")


def check_no_draft(folder: Path) -> None:
    """Check that no rebuild of the folder was interrupted: between its two renames the store is missing.

    Raises:
        StagingUnavailableError: a rebuild was interrupted, or is running.
    """
    draft = draft_of(folder)
    if draft.exists():
        raise StagingUnavailableError(
            f"a rebuild of {folder} is under way, or died: run `lakesync staging rebuild --from-lake` again, "
            f"with --replace where a store is there, or remove {draft} to go on with what is in {folder}"
        )
