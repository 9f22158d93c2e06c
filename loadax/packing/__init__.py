"""Packs documents into rows of fixed length."""
