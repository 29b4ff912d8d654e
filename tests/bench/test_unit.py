"""Units: one key for everything that determines a row, and the same units whoever lists them."""

import json
from dataclasses import fields, replace

import pytest

from sightline.bench.images import open_images, split
from sightline.bench.unit import Chunk, Manifest, ModelInfo, RunConfig, Unit, sentence_of
from sightline.errors import InputError

UNIT = Unit(
    run="look",
    model="bundled/shapes-vit",
    weights="ab12",
    recipe="ixg",
    metrics=("insertion", "deletion"),
    images=("a", "b"),
    dataset="shapes",
    data="cd34",
    target="predicted",
    seed=0,
    threads=1,
    device="cpu",
    resize="model",
    classes=(),
    maps=2,
    version="0.1.0",
)
OTHER = {float: 0.5, str: "x", int: 7, tuple: ("x",)}


def manifest(chunks, *, maps=3, models=1):
    described = tuple(ModelInfo(f"m{i}", "w", ("ixg", "random"), ("insertion",)) for i in range(models))
    config = RunConfig("shapes", seed=5, classes=("cat",))
    plan = {"name": "look", "maps": maps, "batch": 2}
    return Manifest(plan, config, "shapes", tuple(chunks), described, (("z", "cut short"),), "0.1.0", "sightline …")


CHUNKS = (Chunk(("a", "b"), "1"), Chunk(("c", "d"), "2"), Chunk(("e",), "3"))


def test_the_key_is_the_same_on_every_machine_and_day():
    assert UNIT.key == "f268a357d3729dc7ca542ad68152e614"
    assert UNIT.key == replace(UNIT).key


@pytest.mark.parametrize("name", [field.name for field in fields(Unit)])
def test_every_part_of_a_unit_is_in_its_key(name):
    other = replace(UNIT, **{name: OTHER[type(getattr(UNIT, name))]})
    assert other.key != UNIT.key


def test_what_a_plan_leaves_out_keeps_the_keys_of_earlier_versions():
    assert not {"enlarge", "source"} & UNIT.to_json().keys()
    assert "enlarge" not in RunConfig("shapes").to_json()
    assert RunConfig.from_json(RunConfig("shapes", enlarge="nearest").to_json()).enlarge == "nearest"


def test_where_one_field_ends_matters_to_the_key():
    assert replace(UNIT, images=("a", "b,c")).key != replace(UNIT, images=("a,b", "c")).key


def test_units_and_manifests_come_back_from_json():
    assert Unit.from_json(json.loads(json.dumps(UNIT.to_json()))) == UNIT
    found = manifest(CHUNKS)
    again = Manifest.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert [unit.key for unit in again.units()] == [unit.key for unit in found.units()]
    assert found.to_json()["name"] == "look"


def test_units_go_model_by_model_and_chunk_by_chunk():
    units = list(manifest(CHUNKS, models=2).units())
    assert [(unit.model, unit.images[0], unit.recipe) for unit in units[:4]] == [
        ("m0", "a", "ixg"), ("m0", "a", "random"), ("m0", "c", "ixg"), ("m0", "c", "random"),
    ]  # fmt: skip
    assert len({unit.key for unit in units}) == len(units) == 12
    assert {unit.seed for unit in units} == {5}


@pytest.mark.parametrize(("maps", "kept"), [(3, [2, 1, 0]), (True, [2, 2, 1]), (False, [0, 0, 0])])
def test_maps_are_kept_of_the_first_images(maps, kept):
    assert [unit.maps for unit in manifest(CHUNKS, maps=maps).units()][::2] == kept


def test_a_longer_run_finds_what_a_shorter_one_has_done():
    short, long = (split(open_images(f"shapes(count=20, limit={n})"), 4, None) for n in (8, 16))
    assert long[:2] == short
    assert split(open_images("shapes(count=20)"), 4, 8) == short
    assert split(open_images("shapes(count=20, seed=1)"), 4, 8)[0].data != short[0].data


def test_an_image_more_elsewhere_does_not_touch_a_chunk(photos):
    before = split(open_images(str(photos)), 2, None)
    (photos / "images" / "photo5.png").unlink()
    assert split(open_images(str(photos)), 2, None)[:2] == before[:2]


def test_an_error_becomes_one_line():
    assert sentence_of(InputError("a\nb")) == "a b"
    assert sentence_of(ValueError("no")) == "ValueError: no"
    assert sentence_of(KeyError()) == "KeyError"
