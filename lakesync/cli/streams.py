"""The three streams of a process, made ready for whatever it is started from."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def make_ready() -> None:
    """Let a stream that was closed before the start be empty, and one that lacks letters escape them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # the order in which their numbers are free
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Write what is buffered for stdout, so that an error is reported as any other rather than as the process exits.

    Raises:
        OSError: the disk is full, or the reader has gone; the rest is discarded, or the interpreter would try again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
