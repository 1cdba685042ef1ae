-- A row that is what its first INSERT made of it is not kept apart: what it is sent as says it all, with its arrival and
-- bucket keys.

-- born: NULL where row_body has the row, or its entries alone are written so far
ALTER TABLE row_state ADD COLUMN born BLOB;
