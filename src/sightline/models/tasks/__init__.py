"""Tasks beyond classification: outputs that are a class per pixel, and the targets that read them."""
