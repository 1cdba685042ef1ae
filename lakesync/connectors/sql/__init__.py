"""Databases as sources: what a query gives, by a column that grows or by comparing all of it.

The drivers are this package's own: an adapter's connection reads tables of deltas, strings and integers, whole; a
poller reads anybody's query, of any type, in pieces.
"""
