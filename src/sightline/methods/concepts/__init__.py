"""Concepts: components that the activations of a layer are made of, and how much they matter."""
