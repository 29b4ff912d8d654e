"""Operators: method to method."""
