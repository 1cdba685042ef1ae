"""Starts `bqemulator` without what it would download, and taking the stock client's uploads; runs in its own Python."""

import sys

from bqemulator.api.routes import upload
from bqemulator.cli import main
from bqemulator.storage import engine

for each in vars(engine).values():
    if isinstance(each, type) and hasattr(each, "_load_spatial"):
        each._load_spatial = lambda _: None  # an extension of DuckDB's, from the network
upload._is_permitted_media_type = lambda _: True  # the stock client sends `*/*`

sys.exit(main())
