"""The store: rows of finished units, and what it holds of a run."""
