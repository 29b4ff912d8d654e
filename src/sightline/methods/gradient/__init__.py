"""Gradients of the target at the pixels or the tokens."""
