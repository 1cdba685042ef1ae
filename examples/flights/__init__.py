"""Demonstration: the flights that departed from New York in 2013, written by sixteen carriers and three airports.

Run it with `scripts/demo`, or with `python -m examples.flights` in an installed checkout.
"""
