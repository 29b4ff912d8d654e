"""Gradients of the target with respect to pixels or tokens."""
