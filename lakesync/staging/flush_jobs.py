"""Work that follows a flush of the gateway's own, as encoded jobs: the same statements in every store."""

from __future__ import annotations

from lakesync.staging.asking import Asking

_ADD = "INSERT INTO flush_job (gateway, set_aside, job_id, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DROP = "DELETE FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_GET = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_LIST = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? ORDER BY job_id LIMIT ?"


class FlushJobView(Asking):
    """The part of a `View` that reads them."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return jobs in the order of their ids: those that wait, or those that were set aside."""
        return [bytes(body) for (body,) in self._ask(_LIST, int(set_aside), limit)]


class FlushJobCommit(FlushJobView):
    """The part of a `Commit` that writes them."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job; one that is there stays as it is."""
        self._ask(_ADD, int(set_aside), job_id, body)

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job; return it, or None where it is not there."""
        found = self._ask(_GET, int(set_aside), job_id)
        self._ask(_DROP, int(set_aside), job_id)
        return bytes(found[0][0]) if found else None
