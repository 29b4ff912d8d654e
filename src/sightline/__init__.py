"""sightline explains what a vision model looked at, and says how far that explanation can be trusted."""

from sightline.models.families import adapt
