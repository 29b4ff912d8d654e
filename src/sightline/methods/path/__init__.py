"""Gradients integrated along a path from a baseline to the image."""
