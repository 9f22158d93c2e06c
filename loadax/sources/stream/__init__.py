"""Streams: data without random access, in a fixed number of lanes."""
