"""Integrals of gradients along a path from a baseline to the image."""
