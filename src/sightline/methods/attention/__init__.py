"""Attention-based methods: attention maps, weighted by gradients, aggregated over blocks."""
