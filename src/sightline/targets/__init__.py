"""Targets: what is explained, as functions of a model's output, for classes, tasks and words."""
