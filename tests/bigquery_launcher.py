"""Starts `bqemulator` without its downloads and with support for the stock client's uploads; runs in its own Python.

With `BIGQUERY_DIES=WORD:N` in its environment it dies in the middle of its Nth statement that begins with the word
(`COPY` is a load, `MERGE` a MERGE): it was carried out, and not committed.
"""

import os
import signal
import sys
from itertools import count

from bqemulator.api.routes import upload
from bqemulator.cli import main
from bqemulator.storage import engine

for each in vars(engine).values():
    if isinstance(each, type) and hasattr(each, "_load_spatial"):
        each._load_spatial = lambda _: None  # an extension of DuckDB that it downloads
upload._is_permitted_media_type = lambda _: True  # the stock client sends `*/*`

WORD, _, NUMBER = os.environ.get("BIGQUERY_DIES", "").partition(":")
if WORD:
    passages, execute = count(1), engine.DuckDBEngine.execute

    def execute_or_die(self, sql, parameters=None):
        if not sql.lstrip().upper().startswith(WORD) or next(passages) < int(NUMBER):
            return execute(self, sql, parameters)
        execute(self, "BEGIN TRANSACTION")
        execute(self, sql, parameters)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the emulator was killed")

    engine.DuckDBEngine.execute = execute_or_die

sys.exit(main())
