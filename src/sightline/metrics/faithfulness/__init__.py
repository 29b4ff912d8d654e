"""Faithfulness: whether the model's answer follows what a map calls important."""
