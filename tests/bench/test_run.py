"""Runs: the same rows whoever does the work, nothing done twice, nothing left out."""

import math
import uuid

import pytest
import torch
from torch import nn

from sightline.bench import driver as module
from sightline.bench.engines.messages import error_of, pack, pack_error, unpack
from sightline.bench.engines.process import handle_task
from sightline.bench.images import open_images
from sightline.bench.run import Callback, resume, run
from sightline.bench.store.status import status_of
from sightline.bench.store.store import Store, read_maps, read_maps_and_enlarge, read_rows
from sightline.bench.unit import RunConfig
from sightline.bench.worker import Worker, digest_weights
from sightline.errors import InputError, RecipeError, SightlineError, UnsupportedModel
from sightline.metrics import case
from sightline.metrics.correlation import single_deletion
from sightline.models.inputs import adapt
from sightline.models.passes import SharedPasses
from sightline.operators.refine import MetricDriven
from sightline.recipe import parse


class Listening(Callback):
    """Remembers what it hears, and may do something at each unit."""

    def __init__(self, at_each=lambda: None):
        self.notes, self.todo, self.heard, self.at_each = [], None, 0, at_each

    def planned(self, manifest, total, todo):
        self.todo = todo

    def advanced(self, unit, means):
        self.heard += 1
        self.at_each()

    def note(self, sentence):
        self.notes.append(sentence)


def test_every_image_has_a_row_for_every_metric(plan, tmp_path):
    outcome = run(plan(), str(tmp_path / "s"), workers=0)
    assert (outcome.total, outcome.computed, outcome.before, outcome.complete) == (6, 6, 0, True)
    rows = read_rows(tmp_path / "s")
    assert len(rows) == 6 * 2 * 3
    assert set(rows["metric"]) == {"insertion(step=128)", "deletion(step=128)", "average_precision"}
    assert set(rows["run"]) == {"small"}
    assert set(rows["image"]) == {f"photo{index}" for index in range(6)}
    assert list(rows["label"][:6]) == [0, 1, 2, 3, 4, 0]
    assert rows["seconds"].gt(0).all()
    assert rows["versions"].str.contains('"torch"').all()


def test_an_image_without_a_mask_is_told_and_scored_by_the_rest(plan, tmp_path):
    run(plan(), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    blind = rows[(rows["image"] == "photo5") & (rows["metric"] == "average_precision")]
    assert set(blind["flag"]) == {"no mask"}
    assert blind["value"].isna().all()
    assert rows.drop(blind.index)["value"].notna().all()
    assert rows.drop(blind.index)["flag"].eq("").all()


def test_values_are_those_of_explain_and_evaluate(plan, tmp_path, photos):
    from sightline.api import evaluate, explain
    from sightline.models.zoo import ids as zoo

    run(plan(batch=1, methods=["ixg"]), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s").set_index(["metric", "image"])
    model, sample = zoo.load("tests/small"), open_images(str(photos)).read("photo2")
    found = explain(model, sample.image, "ixg")
    scores = evaluate(model, sample.image, found, ["insertion(step=128)"], labels=[2])
    line = rows.loc[("insertion(step=128)", "photo2")]
    assert line["value"] == float(scores["insertion(step=128)"])
    assert list(line["curve"]) == scores.curves["insertion(step=128)"][0].double().tolist()
    assert line["target"] == int(model.predict(model.accept(model.preprocess(sample.image)[None])).argmax())


def test_a_plan_says_how_maps_become_pixels(plan, tmp_path, photos):
    from sightline.api import evaluate, explain
    from sightline.models.zoo import ids as zoo

    metric = "insertion(step=128)"
    model, sample = zoo.load("tests/small"), open_images(str(photos)).read("photo2")
    values = {}
    for enlarge in (None, "nearest", "bicubic"):
        store = tmp_path / str(enlarge)
        run(plan(batch=1, methods=["grad_cam"], metrics=[metric], enlarge=enlarge), str(store), workers=0)
        rows = read_rows(store)
        found = explain(model, sample.image, "grad_cam", enlarge=enlarge)
        assert found.enlarge == (enlarge or "bilinear")
        mine = rows[(rows["recipe"] == "grad_cam") & (rows["image"] == "photo2")]
        values[enlarge] = float(mine["value"].iloc[0])
        assert values[enlarge] == float(evaluate(model, sample.image, found, metric)[metric])
        assert read_maps_and_enlarge(store, mine["unit"].iloc[0])[1] == (enlarge or "bilinear")
    assert len(set(values.values())) > 1


def test_densities_of_one_search_are_searched_once(plan, tmp_path, monkeypatch):
    searched = []
    refine = MetricDriven.refine
    monkeypatch.setattr(MetricDriven, "refine", lambda *given: searched.append(given) or refine(*given))
    base = "mda(seed=None, cells=2, steps=3"
    plain = plan(metrics=["deletion(step=128)"], methods=[f"{base})", f"{base}, gamma=1.0)"], controls=False, batch=2)
    run(plain, str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    assert len(searched) == -(-rows["image"].nunique() // 2)
    passes = rows.groupby("recipe")["forward"].apply(list)
    assert passes.iloc[0] == passes.iloc[1]
    alone = plan(metrics=["deletion(step=128)"], methods=[f"{base}, gamma=1.0)"], controls=False, batch=2)
    run(alone, str(tmp_path / "t"), workers=0)
    both, one = rows[rows["recipe"] == alone.expanded().recipes[0]], read_rows(tmp_path / "t")
    assert both.set_index("image")["value"].to_dict() == one.set_index("image")["value"].to_dict()


def test_passes_that_do_not_depend_on_the_map_are_run_once_for_all_methods(plan, tmp_path, monkeypatch):
    run_without = []
    without = single_deletion.logits_without
    monkeypatch.setattr(single_deletion, "logits_without", lambda *given: run_without.append(given) or without(*given))
    metrics = ["single_deletion(grid=(2, 2))"]
    two = plan(metrics=metrics, methods=["ixg", "gradient"], controls=False, batch=2)
    run(two, str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    assert len(run_without) == -(-rows["image"].nunique() // 2)
    run(plan(metrics=metrics, methods=["gradient"], controls=False, batch=2), str(tmp_path / "t"), workers=0)
    shared, alone = rows[rows["recipe"] == "gradient"].set_index("image"), read_rows(tmp_path / "t").set_index("image")
    for column in ("value", "metric_forward"):
        assert shared[column].to_dict() == alone[column].to_dict()


def test_curves_of_maps_with_the_same_order_are_run_once(plan, tmp_path, rows, monkeypatch):
    made = []
    curve = case.response_curve
    monkeypatch.setattr(case, "response_curve", lambda *given, **known: made.append(given) or curve(*given, **known))
    methods = [
        "random",
        "random(seed=1)",
        "absolute(random)",
    ]  # random numbers are positive: the first and the last agree
    run(plan(methods=methods, metrics=["insertion(step=128)"]), str(tmp_path / "together"), workers=0)
    assert len(made) == 3 * 2  # chunks, and orders
    run(plan(methods=methods[2], metrics=["insertion(step=128)"]), str(tmp_path / "alone"), workers=0)
    last = {row for row in rows(tmp_path / "together") if "absolute(random)" in row}
    assert last == set(rows(tmp_path / "alone"))


def test_passes_that_methods_have_in_common_are_run_once_and_give_the_same_rows(plan, tmp_path, rows, monkeypatch):
    methods = ["ixg", "gradient", "grad_cam", "hires_cam", "layer_cam"]
    saved = []
    remember = SharedPasses.once
    monkeypatch.setattr(SharedPasses, "once", lambda self, *given: saved.append(self) or remember(self, *given))
    run(plan(methods=methods), str(tmp_path / "together"), workers=0)
    assert len({id(passes) for passes in saved}) == 3  # one for each chunk
    assert all(passes.saved.forward == 2 * 3 for passes in saved)  # two images; ixg, and two of the CAMs
    monkeypatch.setattr(SharedPasses, "once", lambda self, key, make: make())
    run(plan(methods=methods), str(tmp_path / "alone"), workers=0)
    assert rows(tmp_path / "together") == rows(tmp_path / "alone")


def test_passes_are_those_of_the_method_per_image(plan, tmp_path):
    from sightline.models.zoo import ids as zoo

    run(plan(), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    for recipe, own in rows.groupby("recipe"):
        cost = parse(recipe).cost(zoo.load("tests/small"))
        assert set(own["forward"]) == {cost.forward}
        assert set(own["backward"]) == {cost.backward}
    assert rows["metric_forward"].gt(8).all()


def test_labels_can_be_explained(plan, tmp_path):
    run(plan(target="label"), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    assert (rows["label"] == rows["target"]).all()


def test_images_without_a_label_fail_where_labels_are_explained(plan, tmp_path, photos):
    outcome = run(plan(target="label", dataset=str(photos / "images")), str(tmp_path / "s"), workers=0)
    assert len(outcome.failures) == 12
    assert "has no label" in outcome.failures[0].reason


@pytest.mark.parametrize("resize", ["model", "squash"])
def test_images_of_one_size_or_another_give_whole_rows(plan, tmp_path, resize):
    run(plan(resize=resize, methods=["ixg"]), str(tmp_path / "s"), workers=0)
    assert read_rows(tmp_path / "s")["flag"].isin(["", "no mask"]).all()


def test_the_order_of_the_work_does_not_matter(plan, tmp_path, rows, monkeypatch):
    run(plan(), str(tmp_path / "a"), workers=0)
    monkeypatch.setattr(module, "_rotated", lambda units: list(reversed(units)))
    run(plan(), str(tmp_path / "b"), workers=0)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    monkeypatch.undo()
    first = next(Store(str(tmp_path / "a")).manifest().units())
    assert read_maps(tmp_path / "a", first.key).keys() == {"photo0", "photo1"}


def test_another_batch_changes_at_most_the_last_digits(plan, tmp_path):
    run(plan(batch=6), str(tmp_path / "a"), workers=0)
    run(plan(batch=1), str(tmp_path / "b"), workers=0)
    one, other = (read_rows(tmp_path / name)["value"] for name in "ab")
    assert (one - other).abs().max() < 1e-5


def test_what_is_there_is_not_done_again(plan, tmp_path):
    run(plan(limit=2), str(tmp_path / "s"), workers=0)
    listening = Listening()
    outcome = run(plan(limit=4), str(tmp_path / "s"), workers=0, callback=listening)
    assert (listening.todo, outcome.before, outcome.computed, outcome.total) == (2, 2, 2, 4)
    assert not run(plan(limit=4), str(tmp_path / "s"), workers=0).computed
    assert len(read_rows(tmp_path / "s")) == 4 * 2 * 3
    run(plan(limit=2), str(tmp_path / "s"), workers=0)
    assert len(read_rows(tmp_path / "s")) == 2 * 2 * 3


def test_a_bucket_is_as_good_as_a_folder(plan, tmp_path, rows):
    bucket = f"memory://{uuid.uuid4().hex}"
    run(plan(), bucket, workers=0)
    run(plan(), str(tmp_path / "s"), workers=0)
    assert rows(bucket) == rows(tmp_path / "s")
    assert status_of(bucket).complete


def test_another_plan_in_the_same_store_is_told_and_keeps_its_rows(plan, tmp_path):
    run(plan(methods=["ixg"]), str(tmp_path / "s"), workers=0)
    listening = Listening()
    run(plan(name="second", methods=["ixg"]), str(tmp_path / "s"), workers=0, callback=listening)
    assert "held the run 'small'" in listening.notes[0]
    assert set(read_rows(tmp_path / "s")["run"]) == {"second"}
    assert set(read_rows(tmp_path / "s", run="small")["run"]) == {"small"}


def test_what_does_not_run_on_a_model_is_left_out_and_told(plan, tmp_path):
    listening = Listening()
    outcome = run(plan(methods=["ixg", "rollout"], limit=2), str(tmp_path / "s"), workers=0, callback=listening)
    assert outcome.complete
    assert outcome.left_out[0][:2] == ("tests/small", "rollout")
    assert "left out rollout on tests/small: rollout needs attention maps" in listening.notes[0]
    assert set(read_rows(tmp_path / "s")["recipe"]) == {"ixg"}
    with pytest.raises(UnsupportedModel, match="none of the plan's recipes runs on tests/small"):
        run(plan(methods=["rollout"]), str(tmp_path / "t"), workers=0)


def test_a_wrong_data_set_is_told_before_anything_is_written(plan, tmp_path):
    with pytest.raises((InputError, RecipeError), match="shaps"):
        run(plan(dataset="shaps"), str(tmp_path / "s"), workers=0)
    assert not (tmp_path / "s").exists()


def test_means_and_errors_are_those_of_the_rows(plan, tmp_path):
    outcome = run(plan(), str(tmp_path / "s"), workers=0)
    rows = read_rows(tmp_path / "s")
    for line in outcome.running_means.ranked():
        own = rows[(rows["recipe"] == line.recipe) & (rows["metric"] == line.metric)]["value"]
        assert math.isclose(line.mean, own.mean(), rel_tol=1e-12)
        assert math.isclose(line.standard_error, own.sem(), rel_tol=1e-12)
        assert line.count == own.count()


def test_two_drivers_on_one_store_do_not_do_the_same_twice(plan, tmp_path, rows):
    """While one driver is at work another runs the whole plan; the first then finds everything done."""
    store, others = str(tmp_path / "s"), []

    def second():
        if not others:
            others.append(run(plan(), store, workers=0))

    outcome = run(plan(), store, workers=0, callback=Listening(second))
    assert outcome.computed == 1
    assert others[0].computed == 5
    assert outcome.complete
    assert len(outcome.running_means.ranked()) == 6
    run(plan(), str(tmp_path / "alone"), workers=0)
    assert rows(store) == rows(tmp_path / "alone")


def test_the_digest_of_weights_is_theirs_alone():
    def network(scale):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        with torch.no_grad():
            module[0].bias *= scale
        return adapt(module.eval())

    assert digest_weights(network(1.0)) == digest_weights(network(1.0))
    assert digest_weights(network(1.0)) != digest_weights(network(1.1))
    assert digest_weights(adapt(lambda images: images)) == ""


def test_weights_that_are_not_those_of_the_run_are_refused(plan, tmp_path):
    run(plan(limit=1, methods=["ixg"]), str(tmp_path / "s"), workers=0)
    manifest = Store(str(tmp_path / "s")).manifest()
    from dataclasses import replace

    from sightline.bench.store.rows import decode

    unit = replace(next(manifest.units()), weights="0" * 32)
    found = decode(Worker(manifest.config).compute(unit).rows)["flag"].to_pylist()
    assert all("are not those of the run" in flag for flag in found)


def test_threads_are_those_of_the_plan_and_given_back(plan, tmp_path):
    before = torch.get_num_threads()
    run(plan(limit=1, methods=["ixg"], threads=2), str(tmp_path / "s"), workers=0)
    assert torch.get_num_threads() == before


def test_two_processes_give_the_rows_of_one(plan, tmp_path, rows):
    """The local engine for real: two models, two workers, then a resume with nothing to do."""
    changes = {"models": ["tests/small", "tests/other"], "controls": True, "methods": ["ixg"]}
    run(plan(**changes), str(tmp_path / "inline"), workers=0)
    outcome = run(plan(**changes), str(tmp_path / "local"), workers=2)
    assert outcome.computed == outcome.total == 2 * 3 * 5
    assert rows(tmp_path / "local") == rows(tmp_path / "inline")
    assert {path.name for path in (tmp_path / "local").rglob("*.safetensors")} == {
        path.name for path in (tmp_path / "inline").rglob("*.safetensors")
    }
    for path in (tmp_path / "local").rglob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "inline" / "maps" / path.name).read_bytes()


def test_what_a_worker_cannot_do_reaches_the_driver_as_it_was(outside):
    worker = Worker(RunConfig("shapes"))
    task = {"kind": "describe", "model": "bundled/none", "recipes": ["ixg"], "metrics": ["insertion"]}
    head, blobs = unpack(pack(*handle_task(worker, task, [])[:1]))
    assert blobs == []
    with pytest.raises(UnsupportedModel, match="no model called 'bundled/none'"):
        raise error_of(head)
    with pytest.raises(SightlineError, match="a worker failed: KeyError: 'x'"):
        raise error_of(pack_error(KeyError("x")))


def test_messages_come_apart_as_they_were_put_together():
    assert unpack(pack({"a": [1, "ü"]}, b"", b"\x00\x01" * 99)) == ({"a": [1, "ü"]}, [b"", b"\x00\x01" * 99])


def test_resume_goes_on_where_a_run_was_stopped(plan, tmp_path, rows):
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    with pytest.raises(Stop):
        run(plan(), str(tmp_path / "s"), workers=0, callback=Listening(stop))
    assert status_of(str(tmp_path / "s")).done == 1
    outcome = resume(str(tmp_path / "s"), workers=0)
    assert (outcome.before, outcome.computed) == (1, 5)
    run(plan(), str(tmp_path / "t"), workers=0)
    assert rows(tmp_path / "s") == rows(tmp_path / "t")
