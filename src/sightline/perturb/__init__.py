"""Perturbation: orders, fills and response curves, shared by methods and metrics."""
