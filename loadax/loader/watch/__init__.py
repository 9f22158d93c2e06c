"""Watches a run from a thread of its own: do the hosts agree, and does a batch come?"""
