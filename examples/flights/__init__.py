"""A demonstration: the flights that left New York in 2013, told by sixteen carriers and three airports.

Run it with `scripts/demo`, or with `python -m examples.flights` in an installed checkout.
"""
