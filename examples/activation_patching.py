# %% [markdown]
# # Activation patching
#
# `caap` puts the activations of one patch and its neighbours into the forward pass of a blank picture and reads the
# score. `radius` says how many neighbours, `frozen` holds the patched tokens to the end.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-vit")
batch = Shapes(seed=1).draw(1)
images = model.normalise(batch.images)

# %%
recipes = ["caap", "caap(radius=0)", "caap(frozen=True)", "e_caap"]
maps = sightline.explain(model, images, recipes, target=batch.labels)
for attribution in maps:
    print(attribution)

# %% [markdown]
# The patch goes into every layer from `start` to `last`. The fewer layers are patched, the more of the score comes back
# from the blank picture.

# %%
for last in range(1, model.depth + 1):
    patched = sightline.explain(model, images, f"caap(last={last})", target=batch.labels)
    print(f"layers 1 to {last}: largest score {float(patched.map.max()):.2f}")
patched

# %% [markdown]
# How much of each map lies on the shape?

# %%
for attribution in maps:
    scores = sightline.evaluate(model, images, attribution, "average_precision", masks=batch.evidence.to(int))
    print(f"{attribution.recipe}: {float(scores['average_precision'][0]):.2f}")
