"""Methods: (model, images, target) to attribution."""
