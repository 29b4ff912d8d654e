# %% [markdown]
# # Is my method sane?
#
# The weights are randomised layer by layer. The map of a method that explains the model must change.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-vit")
images = model.normalise(Shapes(seed=1).draw(2).images)

# %%
check = sightline.sanity(model, images, ["gae", "sobel"])
print(check.failed)
check
