"""Shards of records: WebDataset's tar files and TFRecord files."""
