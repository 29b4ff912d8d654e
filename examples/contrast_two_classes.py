# %% [markdown]
# # Contrast two classes
#
# A map of a class shows everything that speaks for it, also what speaks for another class as much. `Contrast` explains
# the difference of two logits, `var` keeps the pixels where the class wins a softmax over several classes.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-vit")
batch = Shapes(seed=1).draw(1)
images = model.normalise(batch.images)

# %%
attribution = sightline.explain(model, images, "caap", target=batch.labels)
attribution

# %%
sightline.explain(model, images, "plus(libra(ixg))", target=sightline.Contrast(int(batch.labels[0]), 0))

# %%
specific = sightline.explain(model, images, "var(caap, classes='top3', distribution=True)", target=batch.labels)
print(specific.details.distribution.shape)
specific
