"""The model: clocks, deltas, their merge, schemas, message types, identifiers, errors. All packages import it."""
