"""Attributions to the cells of a layer along a path of images."""
