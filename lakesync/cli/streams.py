"""The standard streams of the process: `main` prepares them, and `LazyGroup` flushes stdout after each command."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def prepare() -> None:
    """Replace streams that the parent process closed, and escape characters that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their file descriptors
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Flush stdout, so that a failure is reported like any other error and not while the interpreter exits.

    Raises:
        OSError: the disk is full, or the reader has closed its end. The remaining output is discarded, because the
            interpreter would try to write it again.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
