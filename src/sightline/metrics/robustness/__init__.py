"""Robustness: how far a map moves when the image hardly does."""
