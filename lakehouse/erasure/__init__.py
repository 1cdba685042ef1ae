"""Erases a row, or all that a client wrote, in the lake and in backends beyond it, and proves that nothing is left."""
