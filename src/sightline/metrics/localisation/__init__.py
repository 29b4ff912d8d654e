"""Localisation: whether a map lies where the evidence is known to be."""
