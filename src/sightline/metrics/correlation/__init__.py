"""Correlation of the attributions of parts of an image with the change of the score when the parts are removed."""
