"""Databases and the lake as adapters: one module each, imported when the URI scheme is first used."""
