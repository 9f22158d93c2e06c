"""Verbs that read every row once (filter, exclude, split_by), and the on-disk indices of their results."""
