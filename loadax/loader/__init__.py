"""The loader: plan, fetch, assemble, place, prefetch, iterate."""
