"""Verbs that keep lists of rows (filter, exclude, select, sample, split_by), and on-disk indices of what they read."""
