"""Activation patching: parts of an image's activations in a blank image."""
