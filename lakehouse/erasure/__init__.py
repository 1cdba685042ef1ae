"""Erasure in the lake and in backends beyond it, and the proof that nothing is left."""
