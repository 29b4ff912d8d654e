# %% [markdown]
# # The first map
#
# Load a model, explain a picture, look at the map. The bundled model tells drawn shapes apart.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-vit")
images = model.normalise(Shapes(seed=1).draw(1).images)

# %%
attribution = sightline.explain(model, images, "plus(libra(ixg))")
print(attribution.labels, attribution.passes)
attribution

# %% [markdown]
# `attribution.overlay()` is the picture as a PIL image, `attribution.pixels()` the map at image size, and
# `attribution.save("map.safetensors")` keeps it. A photograph of your own works the same with a model that has its
# preprocessing: `sightline.explain(sightline.load("timm/vit_base_patch16_224"), "dog.jpg", "plus(libra(ixg))")`.
