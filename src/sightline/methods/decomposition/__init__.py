"""Decomposition methods: the contributions of token vectors, propagated forward through the blocks."""
