"""Metrics: attribution to one number per image."""
