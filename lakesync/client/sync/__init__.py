"""Synchronisation of one database with one gateway: who sends which request, when, and what the app is notified of.

From the bottom up: `replica` runs the core (the client's state machine) over the database; `exchange` sends its
requests, with `prefetch` and `checkpoint_load`. `outbox` has the edits, `action_queue` the actions, which it also
sends, and `schema_synchroniser` adds columns. `sync_session` pushes what an app has put into its own queue, and runs
whole synchronisations with all of these, one at a time; `coordinator` starts them for the app, and `auto_sync` in a
thread.
"""
