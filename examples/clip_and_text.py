# %% [markdown]
# # CLIP and text
#
# A CLIP model compares a picture with texts. Two questions can be asked of it: which of several texts fits best (a
# zero-shot classifier), and what in the picture is like one text (`TextSimilarity`).
#
# So that this runs without a download, the model below is a small one with random weights: the calls are those of a
# trained model, the maps mean nothing. With a network, put this in its place:
#
# ```python
# tower = sightline.load("openclip/ViT-B-32:laion2b_s34b_b79k")
# ```

# %%
import torch

import sightline
from sightline.data.shapes import Shapes
from sightline.extras import require
from sightline.models.vit.zero_shot import zero_shot

open_clip = require("open_clip")  # imports it, or says how to install it
torch.manual_seed(0)
vision = {"image_size": 64, "layers": 3, "width": 48, "head_width": 16, "patch_size": 8}
words = {"context_length": 16, "width": 32, "heads": 2, "layers": 2}
tower = sightline.adapt(open_clip.CLIP(32, vision, words).eval(), name="a small CLIP")
images = tower.normalise(Shapes(seed=1).draw(1).images)

# %% [markdown]
# **Which text fits best?** The classes are texts, put into a sentence; everything that works on a classifier works
# on the result: other methods, `rank`, `var` between two texts.

# %%
classifier = zero_shot(tower, ["red triangle", "blue circle", "empty table"], templates=["a drawing of a {}."])
print(classifier.labels)
sightline.explain(classifier, images, "gae", target="blue circle")

# %%
sightline.explain(classifier, images, "plus(libra(ixg))", target=sightline.Contrast(0, 1))

# %% [markdown]
# **What is like this text?** Without classes the output is the embedding, and the target the cosine to a text's.

# %%
attribution = sightline.explain(tower, images, "plus(libra(ixg))", target=sightline.TextSimilarity("a red triangle"))
print(attribution.labels)
attribution

# %% [markdown]
# On the command line, every text gets its maps, ranked:
#
# ```sh
# sightline explain desk.jpg --model openclip/ViT-B-32:laion2b_s34b_b79k --text "a laptop" --text "a mouse"
# ```
