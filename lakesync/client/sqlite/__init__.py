"""The app's SQLite file: its tables, the change journal, and the client's durable state beside them."""
