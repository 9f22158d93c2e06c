"""Verbs that look at all rows once, and keep what they found: in memory, or in an index on disk."""
