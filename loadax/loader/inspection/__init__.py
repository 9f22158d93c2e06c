"""Inspection of a run before and after it: explanations, plan checks, traces, digests."""
