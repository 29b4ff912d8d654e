"""Class activation maps: weighted sums of a layer's channels."""
