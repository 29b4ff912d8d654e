"""Figures of attributions, one file per kind: PIL images and SVG texts from what was computed elsewhere."""
