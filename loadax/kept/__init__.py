"""Data kept for later: index folders, and passes over all rows, cut into parts that processes share."""
