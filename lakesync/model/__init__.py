"""The model: clocks, deltas, their merge, schemas, message types, identifiers, errors. All packages import it.

A *delta* is a client's change of some columns of one row. The model does no input or output, except for private files.
"""
