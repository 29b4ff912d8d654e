"""How the store grows: seconds and memory to open, show, go on with, fold and report a run of many units.

::

    python benchmarks/store_growth.py --units 100000            # folded into packs, as drivers leave them
    python benchmarks/store_growth.py --units 5000 --loose      # one file per unit, as before
    python benchmarks/store_growth.py --rows 100000 1000000 4000000     # the report alone, by the rows it is made of
    python benchmarks/store_growth.py --rows 100000000 --models 8 --measure status resume compact report

The store is synthetic: a real plan of 56 methods, 4 controls and 4 metrics, whose rows are drawn at random and not
computed. One model is `bundled/shapes-cnn`; several are as many sets of weights of timm's smallest vision transformer,
each in a file of its own, so that a hundred million rows are what they would be in practice: the images of ImageNet's
validation set, 60 recipes, 4 metrics, 8 models, in units of 8 images.

Rows are drawn for many units at a time, with their columns encoded, and written by `new_pack`, the one function that
compaction writes packs by: row groups, their order, index and digest are those of any store. A pack takes as many units
as compaction puts together. Units follow in the order of the plan, which is that in which drivers finish them.

Each command runs in a process of its own, which imports everything anew; its wall time, its processor time and the
largest memory it held are printed, and the same of a store of one chunk, so that what is constant can be told from what
grows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

RECIPES, CONTROLS, BATCH = 60, 4, 8
METRICS = ["insertion(step=512)", "deletion(step=512)", "sparseness", "complexity"]
CLASSES = 1000  # of images, as many as ImageNet has
POINTS = 16  # of the curves that two of the metrics keep
TINY = "timm/test_vit"  # of which several models are made
CHUNKS_TOGETHER = 32  # whose units are drawn at a time
UNITS_OF_PACK = 200_000  # half a gigabyte, about
OPEN = "import sys; from sightline.bench.store.store import Store; print(len(Store(sys.argv[1]).keys()))"
COMMANDS = ("open", "status", "resume", "compact", "report")
CLI = "from sightline.cli.main import main; main()"


def make_store(folder: Path, units: int, *, models: int = 1, loose: bool) -> None:
    """Write a store of about `units` finished units."""
    from sightline.bench.plan import make_plan
    from sightline.bench.run import Callback, run
    from sightline.bench.store.store import Store

    class Planned(Exception):
        """The plan is written; the rest is drawn."""

    class Stop(Callback):
        def planned(self, *_: Any) -> None:
            raise Planned

    chunks = max(units // (RECIPES * models), 1)
    plan = make_plan(
        {
            "name": "growth",
            "models": ["bundled/shapes-cnn"] if models == 1 else write_weights(folder, models),
            "methods": [f"smooth_grad(samples={count})" for count in range(1, RECIPES - CONTROLS + 1)],
            "metrics": METRICS,
            "dataset": f"shapes(count={chunks * BATCH})",
            "batch": BATCH,
            "maps": False,
        }
    )
    with suppress(Planned):
        run(plan, str(folder), workers=0, callback=Stop())
    store = Store(str(folder))
    manifest = store.manifest()
    (write_units if loose else write_packs)(store, manifest)


def write_units(store: Any, manifest: Any) -> None:
    """Write every unit into a file of its own, unsynced, since only reading is measured."""
    import numpy as np

    from sightline.bench.store.rows import encode, make_row

    random = np.random.default_rng(0)
    for unit in manifest.units():
        key, curve = unit.key, random.random(POINTS).tolist()
        rows = [
            make_row(unit, key, metric, image, "{}", value=float(random.random()), target=1, label=1, forward=1.0)
            | ({"curve": curve} if index < 2 else {})
            for index, metric in enumerate(unit.metrics)
            for image in unit.images
        ]
        path = Path(store.unit_path(key))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(rows))


def write_weights(folder: Path, count: int) -> list[str]:
    """Write untrained weights of a small model, and return the ids of models that have them."""
    import torch
    from safetensors.torch import save_file

    import sightline

    weights, ids = folder.absolute().with_name(f"{folder.name}-weights"), []
    weights.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        torch.manual_seed(seed)
        path = weights / f"{seed}.safetensors"
        save_file(sightline.load(TINY, pretrained=False).model.state_dict(), path)
        ids.append(f"file:{path}@{TINY}")
    return ids


def write_packs(store: Any, manifest: Any) -> None:
    """Write the units into packs, as compaction does."""
    import numpy as np

    from sightline.bench.store.pack_writer import new_pack
    from sightline.bench.unit_slots import each_slot

    random, slots = np.random.default_rng(0), each_slot(manifest)
    groups = [
        (place, first, min(first + CHUNKS_TOGETHER, len(manifest.chunks)))
        for place in range(len(manifest.models))
        for first in range(0, len(manifest.chunks), CHUNKS_TOGETHER)
    ]
    per_pack = max(UNITS_OF_PACK // (RECIPES * CHUNKS_TOGETHER), 1)
    for start in range(0, len(groups), per_pack):
        with new_pack(store) as pack:
            for place, first, last in groups[start : start + per_pack]:
                count = (last - first) * len(manifest.models[place].recipes)
                keys = [slot.key for slot in islice(slots, count)]
                pack.add(drawn_rows(manifest, place, range(first, last), keys, random))


def drawn_rows(manifest: Any, place: int, chunks: range, keys: list[str], random: Any) -> Any:
    """Return rows of all units of some chunks with a model as a pyarrow table; `keys` are theirs, in order."""
    import numpy as np
    import pyarrow as pa

    from sightline.bench.store.rows import make_row, schema

    model = manifest.models[place]
    recipes, metrics = list(model.recipes), list(model.metrics)
    images = [image for chunk in chunks for image in manifest.chunks[chunk].images]
    # The axes of the rows: chunk, recipe, metric, image of the chunk.
    shape = (len(chunks), len(recipes), len(metrics), BATCH)
    chunk_of, recipe_of, metric_of, image_of = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    total = len(chunk_of)
    example = manifest.unit(model, recipes[0], manifest.chunks[chunks[0]], 0)
    fixed = make_row(example, "", metrics[0], "", "{}", target=1, label=1, forward=1.0)
    columns: dict[str, Any] = {name: pa.repeat(value, total) for name, value in fixed.items() if value is not None}
    sources = manifest.source

    def texts(values: list[str], codes: Any) -> Any:
        return pa.array(values, "string").take(pa.array(codes))

    columns["unit"] = texts(keys, chunk_of * len(recipes) + recipe_of)
    columns["recipe"] = texts(recipes, recipe_of)
    columns["recipe_source"] = texts([sources.recipes[name] for name in recipes], recipe_of)
    columns["metric"] = texts(metrics, metric_of)
    columns["metric_source"] = texts([sources.metrics[name] for name in metrics], metric_of)
    columns["image"] = texts(images, chunk_of * BATCH + image_of)
    columns["label"] = pa.array((chunks.start * BATCH + chunk_of.astype(np.int64) * BATCH + image_of) % CLASSES)
    columns["value"] = random.random(total)
    offsets = np.concatenate([[0], np.cumsum(np.where(metric_of < 2, POINTS, 0))]).astype(np.int32)
    columns["curve"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(random.random(int(offsets[-1]))))
    return pa.table({name: columns[name] for name in schema().names}, schema=schema())


def measure(words: list[str]) -> dict[str, float]:
    """Run a process, and return its wall time, processor time and largest memory."""
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=dict(os.environ))
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(words)} failed")
    return {
        "seconds": time.monotonic() - begun,
        "processor": usage.ru_utime + usage.ru_stime,
        "megabytes": usage.ru_maxrss / (1024 if sys.platform != "darwin" else 2**20),
    }


def commands(folder: Path) -> dict[str, list[str]]:
    store = str(folder)
    return {
        "open": ["-c", OPEN, store],
        "status": ["-c", CLI, "bench", "status", store, "--json"],
        "resume": ["-c", CLI, "bench", "resume", store, "--workers", "0", "--json"],
        "compact": ["-c", CLI, "bench", "compact", store, "--json"],
        "report": ["-c", CLI, "report", store, "--json", "--resamples", "200"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--rows", type=int, nargs="+", help="measure the report alone, of stores of about as many rows")
    parser.add_argument("--models", type=int, default=1, help="how many the plan has")
    parser.add_argument("--loose", action="store_true", help="one file per unit")
    parser.add_argument("--skip", nargs="*", default=[], help="what not to measure, such as report")
    parser.add_argument("--measure", nargs="*", choices=COMMANDS, help="what to measure")
    parser.add_argument("--folder", type=Path, help="keep the stores there, and use those that are there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=Path, help="only make a store, in this folder")
    given = parser.parse_args()
    if given.make:
        make_store(given.make, given.units, models=given.models, loose=given.loose)
        return
    with tempfile.TemporaryDirectory() as temporary:
        base, found = given.folder or Path(temporary), {}
        if not given.json:
            print(
                f"{'units':>8} {'rows':>10} {'command':8} {'seconds':>9} {'processor':>10} {'megabytes':>10}",
                flush=True,
            )
        wanted = set(given.measure or (["report"] if given.rows else COMMANDS)) - set(given.skip)
        smallest = RECIPES * given.models
        for size in [rows // (BATCH * len(METRICS)) for rows in given.rows or ()] or [smallest, given.units]:
            folder = base / f"{size}-{given.models}-{'loose' if given.loose else 'packed'}"
            if not (folder / "made").exists():
                words = [__file__, "--units", str(size), "--models", str(given.models), "--make", str(folder)]
                words += ["--loose"] if given.loose else []
                subprocess.run([sys.executable, *words], check=True)  # a child's memory counts from its parent's
                (folder / "made").touch()
            results = found[max(size // smallest, 1) * smallest] = {}
            for name, words in commands(folder).items():
                if name in wanted:
                    results[name] = measure(words)
                    if not given.json:
                        _show(max(size // smallest, 1) * smallest, name, results[name])
    if given.json:
        print(json.dumps(found))


def _show(units: int, name: str, result: dict[str, float]) -> None:
    numbers = f"{result['seconds']:9.2f} {result['processor']:10.2f} {result['megabytes']:10.0f}"
    print(f"{units:8} {units * BATCH * len(METRICS):10} {name:8} {numbers}", flush=True)


if __name__ == "__main__":
    main()
