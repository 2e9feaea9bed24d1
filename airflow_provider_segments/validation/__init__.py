"""Checks of staged segments before they become visible, without Spark."""
