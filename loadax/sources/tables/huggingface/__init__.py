"""Hugging Face datasets, column by column through Arrow."""
