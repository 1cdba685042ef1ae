"""Pages of a long walk, asked for while those before them are written.

What has come when a write ends is written together, as one page: a commit of three pages costs less than three commits,
and each part of the file that they touch is written once. A cursor is shown to the gateway before its page is durable
here; after a crash the client comes back with an older one, as it does when an answer was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain

from msgspec.structs import replace

from lakesync.client.transports.aside import GLANCE
from lakesync.model.types import SyncPull, SyncResponse
from lakesync.wire.pages import about_bytes

PAGES = 3
"""The most that are written together, and the most that wait: a gateway remembers the newest sixteen cursors."""
BYTES = 16 << 20
"""Of columns, about: while more is written or waits, nothing more is asked for."""
LOOK = 0.02
"""Seconds for a walk to end by itself before its pull is ended."""

Pull = Callable[[SyncPull], SyncResponse]


class Ahead:
    """Answers pulls, and asks by itself for what follows. For one thread at a time, and one that it starts."""

    def __init__(self, pull: Pull, most: int, hang_up: Callable[[], None]) -> None:
        """Args: most: deltas that a page may have; hang_up: ends a pull that is under way, as far as it can be."""
        self._pull = pull
        self._most = most
        self._hang_up = hang_up
        self._walk: _Walk | None = None

    def page(self, request: SyncPull) -> SyncResponse:
        """The answer to a pull, and with it the pages that followed it so far.

        Raises:
            whatever the pull raised, once the pages before it were handed out.
        """
        walk = self._walk
        if walk is None or not walk.goes_on_with(request):
            self.stop()
            page = self._pull(request)
            if page.has_more and request.source is None:  # the cursor of a named source stays where it is
                with suppress(RuntimeError):  # no thread can be started: Python ends
                    self._walk = _Walk(self._pull, request, page, self._most)
            return page
        try:
            page = walk.take()
        except BaseException:
            self.break_off()
            raise
        if not page.has_more:
            self.stop()
        return page

    def stop(self) -> None:
        """Forget what was asked for ahead; nothing is under way afterwards."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.stop()

    def break_off(self) -> None:
        """`stop`, without waiting for what is under way."""
        walk, self._walk = self._walk, None
        while walk is not None and not walk.stop(LOOK):
            self._hang_up()


class _Walk:
    def __init__(self, pull: Pull, request: SyncPull, page: SyncResponse, most: int) -> None:
        """Go on from a page that is being written."""
        self._pull = pull
        self._request = request
        self._most = most
        self._since = page.server_hlc
        self._held = about_bytes(page.deltas)
        """Of the pages that are being written."""
        self._pages: list[SyncResponse] = []
        self._waiting = 0
        """Bytes of those that wait."""
        self._error: BaseException | None = None
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(page,), name="lakesync-ahead", daemon=True)
        self._thread.start()

    def goes_on_with(self, request: SyncPull) -> bool:
        return request.source is None and request.since_hlc == self._since

    def take(self) -> SyncResponse:
        with self._changed:
            self._held = 0
            self._changed.notify_all()
            while not self._changed.wait_for(lambda: self._pages or self._error is not None, GLANCE):
                pass  # an interrupt that came just before a wait is seen when it ends
            pages, self._pages = self._pages, []
            self._held, self._waiting = self._waiting, 0
            if not pages and self._error is not None:
                raise self._error
            self._changed.notify_all()
        self._since = pages[-1].server_hlc
        return _joined(pages)

    def stop(self, seconds: float | None = None) -> bool:
        """Ask for nothing more, and wait so long for what is under way; whether nothing is."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, page: SyncResponse) -> None:
        request = self._request
        while page.has_more and self._may_go_on():
            most = min(self._most, request.max_deltas * 2)
            request = replace(request, since_hlc=page.server_hlc, max_deltas=most)
            try:
                page = self._pull(request)
                size = about_bytes(page.deltas)
            except BaseException as error:  # raised where the page would have been taken
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._pages.append(page)
                self._waiting += size
                self._changed.notify_all()

    def _may_go_on(self) -> bool:
        """Wait for room."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        return len(self._pages) < PAGES and self._held + self._waiting <= BYTES


def _joined(pages: Sequence[SyncResponse]) -> SyncResponse:
    if len(pages) == 1:
        return pages[0]
    deltas = tuple(chain.from_iterable(page.deltas for page in pages))
    return SyncResponse(deltas, pages[-1].server_hlc, pages[-1].has_more)
