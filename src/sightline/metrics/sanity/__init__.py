"""Sanity checks: whether a map depends on the model and on the class."""
