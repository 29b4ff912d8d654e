# %% [markdown]
# # Which map should I believe?
#
# Several methods explain one picture; insertion and deletion on that very picture rank them, together with controls
# that know nothing of the model.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-vit")
images = model.normalise(Shapes(seed=1).draw(1).images)

# %%
ranking = sightline.rank(model, images, ["plus(libra(ixg))", "caap", "gae", "sobel", "random"])
ranking

# %% [markdown]
# The verdict says which recipe to believe, or that none beat the controls.

# %%
print(ranking.verdicts[0])
