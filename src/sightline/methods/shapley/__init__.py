"""Shapley values of superpixels, and their estimators."""
