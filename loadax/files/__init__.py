"""Paths and URLs, byte ranges, caches on disk, locations."""
