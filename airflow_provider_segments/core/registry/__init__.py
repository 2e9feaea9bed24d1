"""Which segments a table has, by time chunk."""
