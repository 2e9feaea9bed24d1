"""Versions of segments: what overwrites hide, the order that pushes keep, and the places of new segments."""
