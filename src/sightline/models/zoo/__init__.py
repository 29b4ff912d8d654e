"""The model zoo: models by id, with their weights, preprocessing and class names."""

from sightline.models.zoo.ids import list_models, load

__all__ = ["list_models", "load"]
