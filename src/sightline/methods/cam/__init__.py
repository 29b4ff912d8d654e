"""Class activation maps: weighted sums of the channels of a layer."""
