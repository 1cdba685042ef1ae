"""Prefetching: a thread pulls the next pages from the gateway server while the client writes one to its database.

`Exchange` calls `Prefetcher` for every pull. A page is a part of the changes that the client lacks, and its cursor says
where the next page begins. All pages that have arrived when a write ends are returned as one. One commit of three pages
costs less than three commits, and a part of the file that several pages touch is written once.

The thread sends the cursor of a page before this page is durable in the client's database. After a crash the client
therefore pulls with an older cursor. The gateway supports that, because the same happens when a response is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from lakesync.model.types import SyncPull, SyncResponse
from lakesync.wire.pages import about_bytes

MAX_PAGES = 3
"""Pages that wait, and are then written together. The limit is low because the gateway remembers only the newest
sixteen cursors of a client, and a client must be able to return to its durable one."""
MAX_BYTES = 16 << 20
"""Approximate bytes of columns in pages that wait or are being written; above it, no further page is pulled."""
_WAIT_SECONDS = 0.5
"""Seconds of one wait for a prefetched page; there may be many. A KeyboardInterrupt may be raised only at its end."""
CANCEL_SECONDS = 0.02
"""Seconds to wait for the thread to end by itself before its pull is cancelled."""

Pull = Callable[[SyncPull], SyncResponse]
"""Sends a pull and returns the page."""


class Prefetcher:
    """Sends pulls, and pulls the pages that follow in a thread. Call it from one thread at a time."""

    def __init__(self, pull: Pull, page_limit: int, cancel_pull: Callable[[], None]) -> None:
        """Create a prefetcher; nothing is pulled yet.

        Args:
            pull: sends a pull and returns the page.
            page_limit: number of deltas in a page, at most.
            cancel_pull: cancels a pull in progress, if possible.
        """
        self._pull = pull
        self._page_limit = page_limit
        self._cancel_pull = cancel_pull
        self._thread: _PrefetchThread | None = None

    def page(self, request: SyncPull) -> SyncResponse:
        """Return the page that a pull asks for, joined with prefetched pages after it.

        Args:
            request: the pull. Prefetched pages are used if its cursor is that of the last page returned.

        Raises:
            BaseException: the error of the pull, also of one that the thread has sent. The pages that it had pulled
                before are returned first.
        """
        thread = self._thread
        if thread is None or not thread.continues(request):
            self.stop()
            page = self._pull(request)
            if page.has_more and request.source is None:  # the cursor of a named source may stay the same
                with suppress(RuntimeError):  # Python is shutting down and starts no thread
                    self._thread = _PrefetchThread(self._pull, request, page, self._page_limit)
            return page
        try:
            page = thread.wait_for_pages()
        except BaseException:
            self.cancel()
            raise
        if not page.has_more:
            self.stop()
        return page

    def stop(self) -> None:
        """Discard prefetched pages, and wait until no pull is in progress."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def cancel(self) -> None:
        """Discard prefetched pages, and cancel a pull in progress."""
        thread, self._thread = self._thread, None
        while thread is not None and not thread.stop(CANCEL_SECONDS):
            self._cancel_pull()


class _PrefetchThread:
    """A thread that pulls the pages after a first one, until the last page, an error or `stop`."""

    def __init__(self, pull: Pull, request: SyncPull, page: SyncResponse, page_limit: int) -> None:
        """Start the thread.

        Args:
            pull: sends a pull and returns the page.
            request: the first pull.
            page: the response to it, which is now being written.
            page_limit: number of deltas in a page, at most.
        """
        self._pull = pull
        self._request = request
        self._page_limit = page_limit
        self._cursor = page.server_hlc
        """The cursor of the newest page that `wait_for_pages` returned."""
        self._bytes_being_written = about_bytes(page.deltas)
        self._pages: list[SyncResponse] = []
        """The pages that wait."""
        self._bytes_waiting = 0
        self._error: BaseException | None = None
        """The exception that ended the thread."""
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(page,), name="lakesync-prefetch", daemon=True)
        self._thread.start()

    def continues(self, request: SyncPull) -> bool:
        """Return whether the waiting pages are the ones that this pull asks for."""
        return request.source is None and request.since_hlc == self._cursor

    def wait_for_pages(self) -> SyncResponse:
        """Wait for a page, and return all waiting pages as one. Call it after the previous page was written.

        Raises:
            BaseException: the exception that ended the thread, once no page waits.
        """
        with self._changed:
            self._bytes_being_written = 0
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._pages or self._error is not None, _WAIT_SECONDS):
                pass  # a KeyboardInterrupt just before a wait is raised when the wait ends
            pages, self._pages = self._pages, []
            self._bytes_being_written, self._bytes_waiting = self._bytes_waiting, 0
            if not pages and self._error is not None:
                raise self._error
            self._changed.notify_all()
        self._cursor = pages[-1].server_hlc
        return _join(pages)

    def stop(self, timeout: float | None = None) -> bool:
        """Pull no further page, and wait for the pull in progress.

        Args:
            timeout: seconds; None waits without limit.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, page: SyncResponse) -> None:
        """Pull the pages after this one. The limit of deltas doubles with each page, up to the page limit."""
        request = self._request
        while page.has_more and self._wait_for_room():
            page_limit = min(self._page_limit, request.max_deltas * 2)
            request = replace(request, since_hlc=page.server_hlc, max_deltas=page_limit)
            try:
                page = self._pull(request)
                size = about_bytes(page.deltas)
            except BaseException as error:  # raised in `wait_for_pages`
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._pages.append(page)
                self._bytes_waiting += size
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        """Wait until another page may be pulled; return False if the thread should stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        """Return whether another page may be requested before those that were received are written."""
        return len(self._pages) < MAX_PAGES and self._bytes_being_written + self._bytes_waiting <= MAX_BYTES


def _join(pages: Sequence[SyncResponse]) -> SyncResponse:
    """Return consecutive pages as one page, with the cursor of the last."""
    if len(pages) == 1:
        return pages[0]
    deltas = tuple(chain.from_iterable(page.deltas for page in pages))
    return SyncResponse(deltas, pages[-1].server_hlc, pages[-1].has_more)
