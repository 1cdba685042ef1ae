"""State tables, which have the current rows of each synced table: merging the history into them, and checking them."""
