"""Activation patching: an image's activations inserted into the forward pass of a blank image."""
