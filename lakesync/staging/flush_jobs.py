"""The table of jobs that follow a flush without a pipeline, for both stores. `side_tables` includes it."""

from __future__ import annotations

from lakesync.staging.asking import Asking

_ADD = "INSERT INTO flush_job (gateway, set_aside, job_id, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DROP = "DELETE FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_GET = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? AND job_id = ?"
_LIST = "SELECT body FROM flush_job WHERE gateway = ? AND set_aside = ? ORDER BY job_id LIMIT ?"


class FlushJobView(Asking):
    """The methods of a `View` that read flush jobs."""

    def flush_jobs(self, *, set_aside: bool, limit: int) -> list[bytes]:
        """Return encoded jobs, ordered by id.

        Args:
            set_aside: whether to return failed jobs that were set aside, or waiting jobs.
            limit: the most jobs.
        """
        return [bytes(body) for (body,) in self._ask(_LIST, int(set_aside), limit)]


class FlushJobCommit(FlushJobView):
    """The methods of a `Commit` that write flush jobs."""

    def add_flush_job(self, job_id: str, body: bytes, *, set_aside: bool) -> None:
        """Add a job, unless one with its id exists.

        Args:
            job_id: of the job.
            body: the encoded job.
            set_aside: whether it failed and is set aside.
        """
        self._ask(_ADD, int(set_aside), job_id, body)

    def take_flush_job(self, job_id: str, *, set_aside: bool) -> bytes | None:
        """Delete a job and return its body; None if there is no such job."""
        found = self._ask(_GET, int(set_aside), job_id)
        self._ask(_DROP, int(set_aside), job_id)
        return bytes(found[0][0]) if found else None
