"""The folder in which a store is made again, beside the one that it will replace."""

from __future__ import annotations

from pathlib import Path

from lakesync.model.errors import StagingUnavailableError


def draft_of(folder: Path) -> Path:
    """Where the folder's next store is made."""
    return folder.with_name(f"{folder.name}.rebuilding")


def check_no_draft(folder: Path) -> None:
    """Whether a rebuild of the folder died: between two renames there is no store in its place, and none may be made.

    Raises:
        StagingUnavailableError: one did.
    """
    draft = draft_of(folder)
    if draft.exists():
        raise StagingUnavailableError(
            f"a rebuild of {folder} is under way, or died: run `lakesync staging rebuild --from-lake` again, "
            f"with --replace where a store is there, or remove {draft} to go on with what is in {folder}"
        )
