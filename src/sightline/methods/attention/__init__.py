"""Attention: probabilities read, weighted by gradients, propagated through the blocks."""
