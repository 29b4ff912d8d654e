"""Axioms: whether a map adds up to what it explains."""
