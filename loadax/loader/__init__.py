"""The loader: plans, reads, assembles, places, prefetches and iterates over batches."""
