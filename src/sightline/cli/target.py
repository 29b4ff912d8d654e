"""What a user means by ``--target``: a class's number or its label."""

from sightline.models.targets import find_class

__all__ = ["find_class"]
