"""Perturbation methods, most of them black-box: the scores of many masked or perturbed images, combined."""
