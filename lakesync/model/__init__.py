"""The model: clocks, deltas, their merge, schemas, message types, identifiers, errors. Everything else imports it."""
