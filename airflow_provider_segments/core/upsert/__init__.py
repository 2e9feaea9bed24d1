"""Upsert: one row a key. Versions, marks and what may be published: see ``docs/upsert.md``."""
