"""Options that metrics of perturbed images share, documented once."""

from __future__ import annotations

from sightline.registry import HasOptions


class PerturbationOptions(HasOptions):
    """What the options that perturbation metrics share mean; a metric has those that are among its fields.

    Attributes:
        step: pixels that change at a time.
        window: width of the first blur that fill='fade' tries, in pixels, odd.
        radius: radius of the blur of fill='blur', in pixels.
        sigma: standard deviation of the blur of fill='blur', in pixels.
        score: what is followed of the class: probability, log_probability, logit or accuracy. Probabilities are those
            of the model's output; a value or an embedding has none and needs logit. A target without a class, such as a
            contrast, is followed itself, in its own units.
        tie: order of equal pixels or patches: index (row-major), or random, drawn with the seed.
        seed: of random ties.
    """

    __slots__ = ()
