"""Models: where blocks, attention and prefix tokens are; reading and replacing what passes through them."""

from sightline.models.adapter import Adapter
from sightline.models.capture import Site, capture
from sightline.models.edit import edit
from sightline.models.inputs import adapt, register_family

__all__ = ["Adapter", "Site", "adapt", "capture", "edit", "register_family"]
