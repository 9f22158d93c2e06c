"""Columns of Arrow arrays, and of tables in memory."""
