# %% [markdown]
# # A small benchmark
#
# One number per image and metric, then means with their standard errors. A plan does the same for many images, with
# intervals and tests: `sightline bench run first-look --store runs/first-look`.

# %%
import sightline
from sightline.data.shapes import Shapes

model = sightline.load("bundled/shapes-cnn")
batch = Shapes(seed=3).draw(8)
images = model.normalise(batch.images)

# %%
for recipe in ["layer_cam", "lrp", "deep_lift", "centre", "random"]:
    attribution = sightline.explain(model, images, recipe, target=batch.labels)
    scores = sightline.evaluate(
        model, images, attribution, ["average_precision", "ins_del(step=256)"], masks=batch.evidence.to(int)
    )
    means = ", ".join(
        f"{name} {values.mean():.2f} ± {values.std() / len(values) ** 0.5:.2f}" for name, values in scores.items()
    )
    print(f"{recipe}: {means}")
