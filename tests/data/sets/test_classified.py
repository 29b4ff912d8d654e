from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from tests.data import miniature as mini

from sightline.data.dataset import open_dataset
from sightline.errors import InputError, RecipeError


def opened(name, root, **options):
    return open_dataset({"name": name, "root": str(root), **options})


# ---- Oxford-IIIT Pet -------------------------------------------------------------------------------------------


def test_breeds_count_from_zero_and_trimaps_become_masks(tmp_path):
    root = mini.pets(tmp_path)
    found = opened("pets", root)
    assert found.ids == ("Abyssinian_201", "yorkshire_terrier_9")
    assert [one.label for one in found] == [0, 36]
    want = np.zeros((16, 24))
    want[4:8, 4:8], want[3, 4:8] = 1, -1
    assert np.array_equal(found.read("Abyssinian_201").mask, want)
    assert "does not exist" in dict(found.skipped)["lost_1"]
    assert opened("pets", root / "oxford-iiit-pet").digest() == found.digest()


def test_pets_without_trimaps_are_left_out_unless_masks_are_not_wanted(tmp_path):
    root = mini.pets(tmp_path)
    trimaps = root / "oxford-iiit-pet" / "annotations" / "trimaps"
    (trimaps / "Abyssinian_201.png").unlink()
    assert opened("pets", root).ids == ("yorkshire_terrier_9",)
    plain = opened("pets", root, masks=False)
    assert len(plain) == 2
    assert plain.read("Abyssinian_201").mask is None
    mini.numbers(trimaps / "Abyssinian_201.png", np.full((16, 24), 9))
    with pytest.raises(InputError, match="holds 9"):
        opened("pets", root).read("Abyssinian_201")
    with pytest.raises(InputError, match=r"trainval\.txt"):
        opened("pets", root, split="trainval")


# ---- Food-101 --------------------------------------------------------------------------------------------------


def test_dishes_count_in_alphabetical_order(tmp_path):
    found = opened("food101", mini.food(tmp_path))
    assert found.ids == ("waffles/12", "apple_pie/1011328", "apple_pie/134")
    assert [one.label for one in found] == [2, 0, 0]
    assert [name for name, _ in found.skipped] == ["sushi/1", "../../secret"]
    assert opened("food101", tmp_path / "food-101").ids == found.ids


# ---- MURA ------------------------------------------------------------------------------------------------------


def test_a_study_says_whether_it_is_abnormal(tmp_path):
    root = mini.mura(tmp_path)
    found = opened("mura", root)
    assert {one.id: one.label for one in found} == {
        "XR_ELBOW/patient2/study1_negative/image1": 0,
        "XR_ELBOW/patient2/study2_positive/image1": 1,
        "XR_WRIST/patient1/study1_positive/image1": 1,
    }
    assert found.read(found.ids[0]).image.mode == "RGB"
    assert [name for name, _ in found.skipped] == ["XR_ELBOW/patient3/elsewhere/image1"]
    assert len(opened("mura", root, part="XR_WRIST")) == 1
    with pytest.raises(InputError, match="the folder of radiographs is missing"):
        opened("mura", root, protocol="skipplus")  # which takes the training split


# ---- Hugging Face ----------------------------------------------------------------------------------------------


def encoded(seed: int, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.fixture
def saved(tmp_path):
    """Save a set of four rows whose last picture is damaged, as a set and as one with splits."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    mask = np.zeros((16, 24), dtype=np.uint8)
    mask[2:5, 2:5] = 255
    drawn = io.BytesIO()
    Image.fromarray(mask).save(drawn, "PNG")
    pictures = [{"bytes": encoded(row), "path": None} for row in range(3)] + [{"bytes": b"no image", "path": None}]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Sequence(datasets.Value("int64")), "mask": datasets.Image()}
    )
    labels = [[7, 3], [340], [], [1]]
    table = datasets.Dataset.from_dict(
        {"image": pictures, "label": labels, "mask": [{"bytes": drawn.getvalue(), "path": None}] * 4}, features=features
    )
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "validation": table.select([1])}).save_to_disk(tmp_path / "split")
    return tmp_path


def test_a_saved_set_opens_by_its_folder(saved):
    found = open_dataset(saved / "one")
    assert found.ids == ("000000", "000001", "000002", "000003")
    first = found.read("000000")
    assert first.label == 7  # the first of several
    assert np.array_equal(np.asarray(first.image), np.asarray(Image.open(io.BytesIO(encoded(0)))))
    assert first.mask is None
    assert found.read("000002").label is None
    with pytest.raises(InputError, match="row 000003 of one is not an image"):
        found.read("000003")
    assert opened("hub", saved / "one", check="whole").ids == found.ids[:3]
    assert opened("hub", saved / "one", mask="mask").read("000001").mask.sum() == 9


def test_a_split_and_columns_are_asked_for_by_name(saved):
    with pytest.raises(InputError, match="has the splits train, validation; say which"):
        open_dataset(saved / "split")
    assert len(opened("hub", saved / "split", split="validation")) == 1
    with pytest.raises(InputError, match="no column 'picture'; it has image, label, mask"):
        opened("hub", saved / "one", image="picture")
    assert opened("hub", saved / "one", label="").read("000000").label is None


def test_a_picture_inside_a_set_has_the_same_limit_as_a_file(saved, monkeypatch):
    monkeypatch.setattr("sightline.data.images.MAX_PIXELS", 100)
    with pytest.raises(InputError, match="24×16, more than"):
        open_dataset(saved / "one").read("000000")


def test_the_seed_of_a_saved_set_is_its_librarys_shuffle(saved):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"row": list(range(4))}).shuffle(seed=43)["row"][:]
    assert opened("hub", saved / "one", seed=43).ids == tuple(f"{row:06d}" for row in rows)


def test_without_network_or_folder_the_way_out_is_told(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def offline(_name):
        raise ConnectionError("Couldn't reach 'taesiri/imagenet-hard' on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    for given in ("imagenet_hard", "hub(repo='taesiri/imagenet-hard')"):
        with pytest.raises(
            InputError, match=r"Couldn't reach .* on the Hub\); without a network, save the set"
        ) as info:
            open_dataset(given)
        assert "and more" not in str(info.value)
    with pytest.raises(RecipeError, match="either root"):
        open_dataset("hub")


def test_imagenet_hard_takes_the_first_of_several_classes(saved):
    found = opened("imagenet_hard", saved / "one")
    assert found.name == "imagenet_hard"
    assert [found.label(one) for one in found.ids[:2]] == [7, 340]
