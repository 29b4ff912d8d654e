"""Miniature copies of data sets on disk: a few tiny pictures in the layout that each set is published in."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

SYNSETS = ("n01440764", "n01443537", "n02391049")  # classes 0, 1 and 340
CLASSES = (0, 1, 340)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (24, 16), mode: str = "RGB") -> Path:
    """Write a noisy picture of (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def numbers(path: Path, values: np.ndarray, palette: bool = False) -> Path:
    """Write a picture of one channel that stores these numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values.astype(np.uint8))
    if palette:
        image = image.convert("P")
        image.putpalette([shade for index in range(256) for shade in (index * 7 % 256, index * 3 % 256, 255 - index)])
        image.frombytes(values.astype(np.uint8).tobytes())
    image.save(path)
    return path


def lines(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def table(path: Path, *rows: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def broken(path: Path) -> Path:
    """Write half of a JPEG file: its header is whole and its pixels are not."""
    picture(path, size=(120, 90))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def no_image(path: Path) -> Path:
    """Write a text under the name of an image."""
    return lines(path, "this is no image")


# ---- the sets --------------------------------------------------------------------------------------------------


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"


def imagenet_flat(root: Path, count: int = 6) -> Path:
    for number in range(1, count + 1):
        picture(root / f"{val_name(number)}.JPEG", number)
    told = (f"{val_name(number)}.JPEG {CLASSES[number % 3]}" for number in range(1, count + 1))
    lines(root / "val.txt", *told)
    return root


def imagenet_folders(root: Path, count: int = 6) -> Path:
    for number in range(1, count + 1):
        picture(root / "val" / SYNSETS[number % 3] / f"{val_name(number)}.JPEG", number)
    return root


def imagenet_kaggle(root: Path, count: int = 6) -> Path:
    rows = []
    for number in range(1, count + 1):
        picture(root / "ILSVRC" / "Data" / "CLS-LOC" / "val" / f"{val_name(number)}.JPEG", number)
        told = f"{SYNSETS[number % 3]} 2 3 5 6 {SYNSETS[number % 3]} 8 8 30 9 n03642806 0 0 1 1 "
        rows.append({"ImageId": val_name(number), "PredictionString": told})
    table(root / "LOC_val_solution.csv", *reversed(rows))
    lines(root / "LOC_synset_mapping.txt", *(f"{synset} a name, another" for synset in SYNSETS))
    return root


def devkit_meta(path: Path, order: tuple[str, ...]) -> Path:
    """Write a meta.mat whose ILSVRC ids count the synsets in this order."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "O")]
    rows = [(number, synset, "name", "text", 0) for number, synset in enumerate(order, start=1)]
    rows.append((1001, "n00001740", "an inner node", "text", 3))
    savemat(str(path), {"synsets": np.array(rows, dtype=kind).reshape(-1, 1)})
    return path


def imagenet_s(root: Path) -> Path:
    """Write three pictures: two classes and an ignored strip, a class of 4 %, and nothing but background."""
    lines(root / "ImageNetS_categories_im919.txt", *SYNSETS)
    first, small, empty = (np.zeros((16, 24), dtype=np.int64) for _ in range(3))
    first[:8], first[8:12], first[15] = 3, 1, 1000
    small[4:8, 10:14] = 2  # 16 of the 256 pixels of the central square, and 16 of 384 of the picture
    for number, ids, synset in ((1, first, 2), (2, small, 1), (3, empty, 0)):
        picture(root / "validation" / SYNSETS[synset] / f"{val_name(number)}.JPEG", number)
        pixels = np.stack([ids % 256, ids // 256, np.zeros_like(ids)], axis=-1).astype(np.uint8)
        path = root / "validation-segmentation" / SYNSETS[synset] / f"{val_name(number)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


def imagenet_segmentation(path: Path, count: int = 3) -> Path:
    """Write gtsegs_ijcv.mat: references to transposed pictures, and to cells with references to masks."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        group = file.create_group("value")
        images = group.create_dataset("img", (count, 1), dtype=h5py.ref_dtype)
        truths = group.create_dataset("gt", (count, 1), dtype=h5py.ref_dtype)
        for row in range(count):
            pixels = random.integers(0, 256, (12 + row, 20, 3), dtype=np.uint8)  # height, width, channel
            mask = np.zeros((12 + row, 20), dtype=np.uint8)
            mask[2:5, 3:9] = 1
            images[row, 0] = file.create_dataset(f"#refs#/i{row}", data=pixels.transpose(2, 1, 0)).ref
            inner = file.create_dataset(f"#refs#/m{row}", data=mask.T)
            cell = file.create_dataset(f"#refs#/c{row}", (1, 1), dtype=h5py.ref_dtype)
            cell[0, 0] = inner.ref
            truths[row, 0] = cell.ref
    return path


def square(x: float, y: float, side: float) -> list[float]:
    return [x, y, x + side, y, x + side, y + side, x, y + side]


def coco(root: Path) -> Path:
    """Write four pictures of 24×16: two squares, a crowd in run lengths, nothing, and one whose file is missing."""
    folder = root / "val2017"
    for number in (1, 2, 3):
        picture(folder / f"{number:012d}.jpg", number)
    crowd = {"size": [16, 24], "counts": [16 * 4, 32, 16 * 20 - 32]}
    annotations = [
        {"image_id": 1, "category_id": 24, "segmentation": [square(2, 2, 4)], "bbox": [2, 2, 4, 4], "iscrowd": 0},
        {"image_id": 1, "category_id": 1, "segmentation": [square(10, 5, 1)], "bbox": [10, 5, 1, 1], "iscrowd": 0},
        {"image_id": 1, "category_id": 59, "segmentation": [square(20, 1, 1)], "bbox": [20, 1, 1, 1], "iscrowd": 0},
        {"image_id": 2, "category_id": 24, "segmentation": crowd, "bbox": [4, 0, 2, 16], "iscrowd": 1},
        {"image_id": 4, "category_id": 24, "segmentation": [square(2, 2, 4)], "bbox": [2, 2, 4, 4], "iscrowd": 0},
    ]
    told = {
        "images": [
            {"id": number, "file_name": f"{number:012d}.jpg", "height": 16, "width": 24} for number in (2, 1, 3, 4)
        ],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "person"}, {"id": 24, "name": "zebra"}, {"id": 59, "name": "pizza"}],
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / "instances_val2017.json").write_text(json.dumps(told))
    return root


def part_imagenet(root: Path) -> Path:
    names = [f"{synset}_{number}.JPEG" for number, synset in enumerate(SYNSETS)] + ["stranger_7.JPEG"]
    for number, name in enumerate(names):
        picture(root / "images" / "val" / name, number)
    told = {
        "images": [{"id": n, "file_name": name, "height": 16, "width": 24} for n, name in enumerate(names)],
        "annotations": [
            {"image_id": 0, "category_id": 0, "segmentation": [square(2, 2, 4)]},
            {"image_id": 0, "category_id": 1, "segmentation": [square(6, 2, 4)]},
            {"image_id": 1, "category_id": 1, "segmentation": [square(1, 1, 3)]},
            {"image_id": 3, "category_id": 1, "segmentation": [square(1, 1, 3)]},
        ],
        "categories": [{"id": 0, "name": "Fish Head"}, {"id": 1, "name": "Fish Body"}],
    }
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "annotations" / "val.json").write_text(json.dumps(told))
    return root


def voc(root: Path) -> Path:
    top = root / "VOCdevkit" / "VOC2012"
    for number, name in enumerate(("2007_000033", "2007_000042")):
        picture(top / "JPEGImages" / f"{name}.jpg", number)
        values = np.zeros((16, 24), dtype=np.int64)
        values[2:6, 2:6], values[10:13, 10:20], values[1, 2:6] = 15, 3, 255
        numbers(top / "SegmentationClass" / f"{name}.png", values, palette=True)
    lines(top / "ImageSets" / "Segmentation" / "val.txt", "2007_000042", "2007_000033", "2007_000061")
    return root


def pets(root: Path) -> Path:
    top = root / "oxford-iiit-pet"
    for number, name in enumerate(("Abyssinian_201", "yorkshire_terrier_9")):
        picture(top / "images" / f"{name}.jpg", number)
        trimap = np.full((16, 24), 2)
        trimap[4:8, 4:8], trimap[3, 4:8] = 1, 3
        numbers(top / "annotations" / "trimaps" / f"{name}.png", trimap)
    told = ("# name class species breed", "Abyssinian_201 1 1 1", "yorkshire_terrier_9 37 2 25", "lost_1 2 1 1")
    lines(top / "annotations" / "test.txt", *told)
    return root


def food(root: Path) -> Path:
    top = root / "food-101"
    names = ("waffles/12", "apple_pie/1011328", "apple_pie/134")
    for number, name in enumerate(names):
        picture(top / "images" / f"{name}.jpg", number)
    lines(top / "meta" / "classes.txt", "apple_pie", "sushi", "waffles")
    lines(top / "meta" / "test.txt", *names, "sushi/1", "../../secret")
    return root


def mura(root: Path) -> Path:
    top = root / "MURA-v1.1" / "valid"
    picture(top / "XR_WRIST" / "patient1" / "study1_positive" / "image1.png", 0, mode="L")
    picture(top / "XR_ELBOW" / "patient2" / "study1_negative" / "image1.png", 1, mode="L")
    picture(top / "XR_ELBOW" / "patient2" / "study2_positive" / "image1.png", 2, mode="L")
    no_image(top / "XR_ELBOW" / "patient2" / "study2_positive" / "._image1.png")  # what macOS leaves behind
    picture(top / "XR_ELBOW" / "patient3" / "elsewhere" / "image1.png", 3, mode="L")
    return root


def labelled(root: Path, count: int = 5) -> Path:
    """Write images/, labels.csv and, for the even ones, masks/."""
    rows = []
    for number in range(count):
        picture(root / "images" / f"p{number}.png", number)
        if number % 2 == 0:
            mask = np.zeros((16, 24))
            mask[2:6, 3:9], mask[7] = 255, 128
            numbers(root / "masks" / f"p{number}.png", mask)
        rows.append({"file": f"p{number}.png", "label": number % 3, "probability": 0.5 + number / 10})
    table(root / "labels.csv", *rows)
    return root
