"""Erasure carried through the lake, and the proof of it."""
