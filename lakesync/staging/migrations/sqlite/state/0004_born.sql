-- A row that consists of one INSERT has no row in row_body: its encoded form contains everything but its arrival and
-- bucket keys.

-- born: arrival and bucket keys of such a row. NULL if row_body has the row, or if only its entries are written yet.
ALTER TABLE row_state ADD COLUMN born BLOB;
