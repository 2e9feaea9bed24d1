"""Frozen value types without I/O: the words every other package speaks."""
