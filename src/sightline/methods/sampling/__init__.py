"""Black-box methods: the image perturbed many times, the answers combined."""
