"""Verbs that look at every row once (filter, exclude, split_by), and the indices that keep the result."""
