"""Servers for development, the demo and the tests."""
