"""Decomposition: token vectors followed forward through the blocks."""
