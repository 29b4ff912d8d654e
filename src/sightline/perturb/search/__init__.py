"""Search for the order and the magnitudes of segments that insertion and deletion themselves would choose."""
