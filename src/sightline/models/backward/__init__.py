"""Backward passes with rules other than the gradient's: LRP, DeepLIFT, guided ReLU, Libra; and biases."""
