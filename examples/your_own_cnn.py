# %% [markdown]
# # Your own network
#
# Any module with convolutions is cut by itself; nothing is written onto it.

# %%
import torch
from torch import nn

import sightline

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
).eval()  # fmt: skip
model = sightline.adapt(network, name="mine", labels=["cat", "dog", "none"])

# %%
attribution = sightline.explain(model, torch.randn(1, 3, 32, 32), "grad_cam", target="dog")
print(attribution.labels)
attribution
