"""What a run will do and what it did: explanations, traces, certificates."""
