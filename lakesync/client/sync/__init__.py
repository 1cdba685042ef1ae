"""Synchronisation of one database with one gateway: who sends which request, when, and what the app is notified of.

From the bottom up: `replica` runs the core (the client's state machine) over the database; `exchange` sends its
requests, with `prefetch` and `checkpoint_load`; `outbox` has what is queued; `sync_session` runs whole
synchronisations, one at a time; `coordinator` starts them for the app, and `auto_sync` in a thread.
"""
