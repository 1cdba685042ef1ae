"""What processes say to one another of the connections that they hold: words among the bucket keys of a notice.

Whoever begins to follow is named to every process. One that holds another connection of the same client names that in
its turn, so both know that what they lack may be sent to them on the other one. A client that follows and pulls over
HTTP besides is named too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

_BEGIN, _END = "@\0", "\0"
"""No bucket key begins so: no client id has a NUL."""
BESIDE = ""
"""In place of a connection's name: the client is sent rows by a request of its own."""
_NOTICE_BYTES = 4000
"""Of the words in one notice, which has to be small."""


class Greeting(NamedTuple):
    """Somebody follows."""

    client_id: str
    line: str
    """Names its connection among those of all processes."""


def spelled(greetings: Iterable[Greeting]) -> Iterator[list[str]]:
    """As notices have them: the words of one after another."""
    words: list[str] = []
    size = 0
    for greeting in greetings:
        word = f"{_BEGIN}{greeting.line}{_END}{greeting.client_id}"
        bytes_ = len(msgspec.json.encode(word))
        if words and size + bytes_ > _NOTICE_BYTES:
            yield words
            words, size = [], 0
        words.append(word)
        size += bytes_
    if words:
        yield words


def heard(words: Iterable[str]) -> Iterator[Greeting]:
    """The greetings among the bucket keys of a notice."""
    for word in words:
        if word.startswith(_BEGIN):
            line, _, client_id = word.removeprefix(_BEGIN).partition(_END)
            yield Greeting(client_id, line)
