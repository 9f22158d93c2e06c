"""Objects of other libraries as sources: tables, open stores, Grain datasets."""
