"""Tables: columns of Arrow arrays, of tables in memory and of Parquet files."""
