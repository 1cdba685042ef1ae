"""State tables: the history of each table merged, and what does not fit."""
