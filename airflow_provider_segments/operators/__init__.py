"""Operators: each builds one request from its arguments, gives it to the store, and pushes the result."""
