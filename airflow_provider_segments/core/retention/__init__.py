"""What a table no longer keeps: clean-up of its lineage, and time retention."""
