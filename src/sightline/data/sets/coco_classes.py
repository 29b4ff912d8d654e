"""Which class of ImageNet a category of COCO is.

The table is our own, read off the two lists of names: no published one is copied. Of the 80 categories 61 have a class.
`CLEAR` holds those for which ImageNet has one class, of the same thing. `KINDS` holds those for which it has a
kind of the thing alone, or several: the most common one is taken, such as the tabby for cat. The other 19, such as
person, giraffe or fork, have none.
"""

from __future__ import annotations

from sightline.data.sets.imagenet_classes import class_of_synset

__all__ = ["CLEAR", "KINDS", "imagenet_classes"]

CLEAR = {
    "backpack": "n02769748",
    "banana": "n07753592",
    "bench": "n03891251",
    "broccoli": "n07714990",
    "cell phone": "n02992529",
    "cup": "n07930864",
    "hair drier": "n03483316",
    "hot dog": "n07697537",
    "keyboard": "n03085013",
    "laptop": "n03642806",
    "microwave": "n03761084",
    "mouse": "n03793489",
    "orange": "n07747607",
    "parking meter": "n03891332",
    "pizza": "n07873807",
    "refrigerator": "n04070727",
    "remote": "n04074963",
    "teddy bear": "n04399382",
    "toaster": "n04442312",
    "traffic light": "n06874185",
    "umbrella": "n04507155",
    "vase": "n04522168",
    "zebra": "n02391049",
}

KINDS = {
    "airplane": "n02690373",
    "apple": "n07742313",
    "bear": "n02132136",
    "bed": "n03388549",
    "bicycle": "n03792782",
    "bird": "n01558993",
    "boat": "n04273569",
    "book": "n07248320",
    "bottle": "n04557648",
    "bowl": "n04263257",
    "bus": "n04146614",
    "car": "n04285008",
    "cat": "n02123045",
    "chair": "n03376595",
    "clock": "n04548280",
    "couch": "n04344873",
    "cow": "n02403003",
    "dining table": "n03201208",
    "dog": "n02099712",
    "elephant": "n02504458",
    "handbag": "n04026417",
    "horse": "n02389026",
    "motorcycle": "n03785016",
    "oven": "n04330267",
    "potted plant": "n03991062",
    "sheep": "n02412080",
    "sink": "n04553703",
    "skis": "n04228054",
    "spoon": "n04597913",
    "sports ball": "n04254680",
    "stop sign": "n06794110",
    "tennis racket": "n04039381",
    "tie": "n04591157",
    "toilet": "n04447861",
    "train": "n03272562",
    "truck": "n04467665",
    "tv": "n04404412",
    "wine glass": "n03443371",
}


def imagenet_classes(*, kinds: bool = False) -> dict[str, int]:
    """Return the ImageNet class of each category that has one, those of kinds only if asked."""
    table = CLEAR | KINDS if kinds else CLEAR
    known = {name: class_of_synset(synset) for name, synset in table.items()}
    return {name: index for name, index in known.items() if index is not None}
