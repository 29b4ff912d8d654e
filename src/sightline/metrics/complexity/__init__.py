"""Complexity: how few pixels carry a map."""
