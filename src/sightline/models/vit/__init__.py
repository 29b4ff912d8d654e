"""Vision transformers: the adapter, and one file per library."""
