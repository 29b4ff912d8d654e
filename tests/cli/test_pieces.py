"""The pieces under the commands: the panel, the frame, the ranking, the target, the outbox."""

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.audit.panel import CONTROLS, choose, is_agnostic, is_control, reseed, short
from sightline.audit.ranking import Rated, metric_step, ranked
from sightline.audit.seen import LARGEST, SMALLEST, frame_of
from sightline.cli.staged_output import safe, writing
from sightline.cli.target import find_class
from sightline.errors import OutputError, TargetError
from sightline.models import adapt
from sightline.recipe import parse, text
from sightline.types import Passes

# ---- the panel -------------------------------------------------------------------------------------------------


def test_every_recipe_of_the_panel_runs_on_its_model(tiny_vit, tiny_cnn, images):
    from sightline import api

    for model in (adapt(tiny_vit), adapt(tiny_cnn)):
        chosen = choose(model)
        assert chosen[-3:] == list(CONTROLS)
        assert len(chosen) >= 7
        for recipe in chosen:
            assert api.explain(model, images, recipe, target=1).recipe == recipe
        assert set(short(model)) < set(chosen) - set(CONTROLS)


def test_a_black_box_is_asked_about_patches():
    model = adapt(lambda images: images.mean(dim=(2, 3)))
    assert choose(model) == ["simple_insertion", "simple_deletion", *CONTROLS]


def test_a_module_nobody_knows_gets_gradients_at_the_pixels():
    model = adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)))
    assert [recipe for recipe in choose(model) if recipe not in CONTROLS] == [
        "ixg",
        "smooth_grad(samples=10)",
        "ig(steps=20)",
    ]


@pytest.mark.parametrize(
    ("recipe", "control", "agnostic"),
    [("random", True, True), ("rectify(sobel)", True, True), ("rollout", False, True), ("smooth(ixg)", False, False)],
)
def test_controls_and_class_agnostic_maps_are_recognised_through_operators(recipe, control, agnostic):
    assert (is_control(parse(recipe)), is_agnostic(parse(recipe))) == (control, agnostic)


def test_a_seed_reaches_methods_inside_operators():
    assert [text(method) for method in reseed(["smooth(random)", "smooth(random(seed=2))", "ixg"], 7)] == [
        "smooth(random(seed=7), seed=7)",
        "smooth(random(seed=2), seed=7)",
        "ixg",
    ]
    assert [text(method) for method in reseed(["random"], None)] == ["random"]


# ---- the ranking -----------------------------------------------------------------------------------------------


def rated(recipe, insertion, deletion=0.0, control=False, flags=()):
    return Rated(recipe, np.zeros((1, 1)), insertion, deletion, {}, Passes(), 0.0, control, False, flags)


def test_the_most_faithful_map_comes_first_and_silent_ones_last_without_a_rank():
    order = ranked(
        [
            rated("low", 0.1),
            rated("flat", 0.9, flags=("constant map",)),
            rated("high", 0.8, 0.2),
            rated("nan", float("nan")),
        ]
    )
    assert [(one.recipe, one.rank) for one in order] == [("high", 1), ("low", 2), ("flat", None), ("nan", None)]


def test_a_method_that_only_equals_a_control_does_not_stand_before_it():
    assert [one.recipe for one in ranked([rated("method", 0.5), rated("control", 0.5, control=True)])] == [
        "control",
        "method",
    ]


def test_the_curves_have_twenty_eight_steps_unless_told_otherwise():
    assert metric_step(torch.zeros(1, 3, 224, 224)) == 1792
    assert metric_step(torch.zeros(1, 3, 2, 2)) == 1


# ---- the target ------------------------------------------------------------------------------------------------


def named(*labels):
    return adapt(lambda images: images, labels=labels, name="zoo")


def test_a_class_answers_to_its_number_its_label_and_its_synonyms():
    model = named("tabby, tabby cat", "Egyptian cat")
    assert [
        find_class(model, wanted) for wanted in ("1", "Tabby", "tabby cat", " EGYPTIAN CAT", "tabby, tabby cat")
    ] == [1, 0, 0, 1, 0]


def test_an_exact_label_is_preferred_to_another_classs_synonym():
    assert find_class(named("crane, bird", "crane"), "crane") == 1


@pytest.mark.parametrize(
    ("wanted", "said"), [("2", "0 to 1"), ("egyptian", "did you mean 'egyptian cat'?"), ("zebra", "begin with")]
)
def test_an_unknown_class_is_refused_with_a_hint(wanted, said):
    with pytest.raises(TargetError, match=said):
        find_class(named("tabby, tabby cat", "Egyptian cat"), wanted)


def test_a_model_without_labels_asks_for_a_number():
    with pytest.raises(TargetError, match="give a number"):
        find_class(adapt(lambda images: images, name="zoo"), "cat")


# ---- the frame -------------------------------------------------------------------------------------------------


class Resize:
    size = 40


class CenterCrop:
    size = (32, 32)


class Prepare:
    """A preprocessing that names its steps as torchvision's does."""

    transforms = (Resize(), CenterCrop())

    def __call__(self, image):
        width, height = image.size
        scale = 40 / min(width, height)
        small = image.resize((round(width * scale), round(height * scale)), Image.Resampling.BICUBIC)
        left, upper = (small.width - 32) // 2, (small.height - 32) // 2
        small = small.crop((left, upper, left + 32, upper + 32))
        return torch.from_numpy(np.asarray(small, dtype=np.float32) / 255).permute(2, 0, 1) * 2 - 1


@pytest.fixture
def photograph():
    """Soft colours, different everywhere."""
    down, across = np.mgrid[0:600, 0:900] / 600
    return Image.fromarray((np.stack([down, across / 1.5, 1 - down], axis=-1) * 255).astype(np.uint8))


def test_the_picture_is_the_sharp_part_that_the_model_sees(photograph):
    model = adapt(lambda images: images, preprocess=Prepare())
    frame = frame_of(model, photograph, Prepare()(photograph))
    assert frame.box == pytest.approx((210, 60, 690, 540))
    assert frame.picture.size == (480, 480)
    assert np.abs(np.asarray(frame.picture, float) - np.asarray(photograph.crop((210, 60, 690, 540)), float)).mean() < 1


def test_a_preprocessing_that_does_something_else_is_found_out(photograph):
    model = adapt(lambda images: images, preprocess=Prepare())
    fed = Prepare()(photograph).flip(1)
    frame = frame_of(model, photograph, fed)
    assert frame.box is None
    assert frame.picture.size == (SMALLEST, SMALLEST)
    assert np.asarray(frame.picture, float)[0, 0, 2] < np.asarray(frame.picture, float)[-1, 0, 2]


def test_a_preprocessing_without_names_shows_what_the_model_was_fed(photograph):
    model = adapt(lambda images: images, preprocess=lambda image: Prepare()(image))
    assert frame_of(model, photograph, Prepare()(photograph)).box is None


def test_a_picture_is_neither_tiny_nor_huge():
    model = adapt(lambda images: images)
    assert frame_of(model, Image.new("RGB", (9, 9)), torch.zeros(3, 9, 9)).picture.size == (SMALLEST, SMALLEST)
    assert frame_of(model, Image.new("RGB", (9, 9)), torch.zeros(3, 900, 300)).picture.size == (
        round(LARGEST / 3),
        LARGEST,
    )


# ---- the outbox ------------------------------------------------------------------------------------------------


def test_files_arrive_when_the_block_ends_well(opened, tmp_path):
    with writing(tmp_path / "a" / "b") as outbox:
        promised = outbox.png("x/one.png", Image.new("RGB", (2, 2)), {"recipe": "ü"})
        assert not promised.exists()
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [promised]
    assert opened(promised).info["recipe"] == "ü"


def test_nothing_arrives_when_it_does_not(tmp_path):
    (tmp_path / "a").mkdir()

    def interrupted():
        with writing(tmp_path / "a" / "b" / "c") as outbox:
            outbox.png("one.png", Image.new("RGB", (2, 2)), {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert list((tmp_path / "a").rglob("*")) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="it is a file, or lies in one"), writing(tmp_path / "file"):
        pass


def test_names_are_safe_on_every_system():
    assert safe("skip_plus(ixg, start=3)") == "skip_plus-ixg-start=3"
    assert safe("../../etc/passwd") == "etc-passwd"
    assert len(safe("x" * 300)) == 80


def test_no_two_images_share_a_folder(tmp_path):
    with writing(tmp_path / "out") as outbox:
        assert [outbox.subfolder(name) for name in ("cat", "Cat", "cat", "index.html", "...")] == [
            "cat",
            "Cat-2",
            "cat-3",
            "index.html-2",
            "image",
        ]
