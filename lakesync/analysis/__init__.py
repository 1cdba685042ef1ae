"""Questions to the lake in SQL, without Java: pyiceberg reads, DuckDB answers, staging adds what is not flushed yet.

The tables are read as anyone may read them; nothing here writes to the lake or owns the store.
"""
