"""Replacing segments by others: start, stage, end and revert."""
