"""The client: an app's rows in its own database, kept in step with a gateway."""
