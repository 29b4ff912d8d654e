# %% [markdown]
# # A new method in 20 lines
#
# A method is a frozen dataclass: its fields are its options, calling it makes the maps, `cost` says in advance what
# that takes. Registered, it works in recipes, under operators, in rankings, checks and benchmarks.

# %%
from dataclasses import dataclass

import torch

import sightline
from sightline.data.shapes import Shapes
from sightline.registry import METHODS
from sightline.types import Attribution, Passes, pixel_grid


@METHODS.register("contrast_gradient", family="gradient", cost="1 forward, 1 backward", needs=("gradient",))
@dataclass(frozen=True, slots=True)
class ContrastGradient:
    """Gradient times the difference of each pixel from the mean colour of the picture."""

    power: float = 1.0

    def __call__(self, model, images, target):
        pixels = images.detach().requires_grad_()
        with torch.enable_grad():
            score = target(model(pixels))
        (gradient,) = model.gradients(score, {"image": pixels}).values()
        difference = images - images.mean((2, 3), keepdim=True)
        weight = difference.sign() * difference.abs() ** self.power
        return Attribution((gradient * weight).sum(1)[None], pixel_grid(images))

    def cost(self, model):
        return Passes(forward=1, backward=1)


# %% [markdown]
# It is a recipe at once, and operators take it.

# %%
model = sightline.load("bundled/shapes-cnn")
images = model.normalise(Shapes(seed=1).draw(1).images)
sightline.explain(model, images, "smooth(contrast_gradient(power=0.5), samples=5)")

# %% [markdown]
# Is it any good? Ranked on a picture, beside two others and the controls `random` and `sobel`:

# %%
ranking = sightline.rank(model, images, ["contrast_gradient", "ixg", "grad_cam", "random", "sobel"])
print(ranking.to_pandas()[["recipe", "score", "control"]].round(3).to_string(index=False))

# %% [markdown]
# Does it depend on the model?

# %%
check = sightline.sanity(model, images, ["contrast_gradient"])
print(check.failed)
check
