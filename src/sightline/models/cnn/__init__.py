"""Convolutional networks and whatever else ends in a feature map: the adapter and its families."""
