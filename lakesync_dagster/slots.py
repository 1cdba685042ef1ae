"""Kinds of runs, each of which has slots of its own, so that none takes the place of another."""

SLOT = "lakesync/slot"
"""Run tag: the kind of slot that the run takes."""
FLUSH, MOVE, POLL, UPKEEP, OTHER = "flush", "move", "poll", "upkeep", "other"
