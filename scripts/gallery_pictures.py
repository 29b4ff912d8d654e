"""Draw the pictures of the gallery, docs/gallery/*.webp, and the one of the front page, docs/overview.png.

``python scripts/gallery_pictures.py`` draws them all, ``… coffee shortcut`` some. The photographs come with
scikit-image and may be used by anybody: coffee (CC0, Rachel Michetti) and chelsea the cat (CC0, Stefan van der Walt).
The model is EfficientNet-Lite0, whose weights come with its package; the drawn shapes are explained on the bundled
transformer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from skimage import data

import sightline
from sightline.audit.verdict import ExplainedImage
from sightline.data.shapes import Shapes
from sightline.formatting import format_score
from sightline.models.adapter import Adapter
from sightline.report.layout import Tile, panel, save_png, stack

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 190  # points of one picture
PANEL = ["grad_cam", "smooth(ixg, samples=5)", "ig(steps=10)", "sobel"]
TOKENS = ["inflow", "caap", "plus(libra(ixg))", "sobel"]
QUALITY = 78


def ranked_row(model: Adapter, image: ExplainedImage) -> Image.Image:
    """Draw the maps of an image in the order of their rank, with the verdict."""
    tiles = [
        Tile(
            f"{each.rank}. {each.recipe}",
            each.map,
            f"score {format_score(each.score)}{', a control' if each.control else ''}",
        )
        for each in image.maps
    ]
    probability = "" if image.target.probability is None else f", {100 * image.target.probability:.0f} %"
    title = f"{image.target.label}{probability} ({model.name})"
    return panel(image.view.picture, tiles, title=title, line=image.verdict.headline, width=WIDTH)


def contrast_row(model: Adapter, image: ExplainedImage, picture: Image.Image, classes: list[str]) -> Image.Image:
    """Draw the maps of two classes, each alone and each against the other."""
    recipe = "grad_cam"
    indices = [model.labels.index(name) for name in classes]
    one, other = (name.split(",")[0] for name in classes)
    targets = [*indices, sightline.Contrast(*indices), sightline.Contrast(*reversed(indices))]
    titles = [one, other, f"{one}, not {other}", f"{other}, not {one}"]
    maps = [sightline.explain(model, picture, recipe, target=target).pixels()[0].numpy() for target in targets]
    tiles = [Tile(title, values, recipe) for title, values in zip(titles, maps, strict=True)]
    line = "The map of each class alone, and of the difference of their logits."
    return panel(image.view.picture, tiles, title=f"Why {one} and not {other}?", line=line, width=WIDTH)


def photograph(name: str, classes: list[str]) -> Image.Image:
    """Rank maps on a photograph, and set two classes against each other."""
    picture = Image.fromarray(getattr(data, name)())
    model = sightline.load("package/efficientnet_lite0")
    (image,) = sightline.rank(model, [picture], PANEL)
    return stack([ranked_row(model, image), contrast_row(model, image, picture, classes)])


def shortcut() -> Image.Image:
    """Rank maps on shapes: one with its shape, and one whose class the model reads off a watermark."""
    model = sightline.load("bundled/shapes-vit")
    samples = [Shapes(seed=1)[0], Shapes(variant="conflict", seed=1)[0]]
    rows = []
    for sample, target in zip(samples, (None, "star"), strict=True):
        (image,) = sightline.rank(model, [Image.fromarray(sample.image)], TOKENS, target)
        rows.append(ranked_row(model, image))
    return stack(rows)


PICTURES = {
    "coffee": lambda: photograph("coffee", ["espresso", "cup"]),
    "cat": lambda: photograph("chelsea", ["tiger cat", "Egyptian cat"]),
    "shortcut": shortcut,
}


def main() -> None:
    """Draw the pictures that are named, or all."""
    (DOCS / "gallery").mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        drawn = PICTURES[name]()
        drawn.save(DOCS / "gallery" / f"{name}.webp", quality=QUALITY, method=6)
        if name == "coffee":
            save_png(drawn.reduce(2).quantize(256), DOCS / "overview.png")
        print(name, drawn.size, (DOCS / "gallery" / f"{name}.webp").stat().st_size)


if __name__ == "__main__":
    main()
