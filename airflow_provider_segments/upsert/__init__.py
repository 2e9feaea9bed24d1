"""The key coordinator and the readers of upsert tables, in one process, on numpy and Arrow. See ``docs/upsert.md``."""
