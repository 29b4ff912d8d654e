"""The catalogue: calls and options as text, names and cards read from the source without importing it."""
