"""Triggers: what deferred sensors wait for in the triggerer."""
