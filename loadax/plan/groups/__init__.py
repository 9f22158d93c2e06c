"""Groups of rows that belong together: where they begin and end, and the orders of verbs that keep them together."""
