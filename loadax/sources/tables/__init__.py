"""Tables: Arrow, Parquet, text files and Hugging Face datasets."""
