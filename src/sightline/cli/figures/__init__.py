"""The command that draws figures: what it is asked for, the pictures of one image, the charts over all images."""
