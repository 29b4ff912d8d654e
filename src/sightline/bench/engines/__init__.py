"""Engines: where units of work are computed, on this machine or a Ray cluster."""
