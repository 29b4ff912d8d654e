"""How the store grows: seconds and memory to open, show, go on with and report a run of many units.

::

    python benchmarks/store_growth.py --units 100000            # folded into packs, as drivers leave them
    python benchmarks/store_growth.py --units 5000 --loose      # one file per unit, as before
    python benchmarks/store_growth.py --rows 100000 1000000 4000000     # the report alone, by the rows it is made of

The store is synthetic: a real plan for `bundled/shapes-cnn`, whose rows are drawn at random and not computed. Each
command runs in a process of its own, which imports everything anew; its wall time, its processor time and the largest
memory it held are printed, and the same of a store of one chunk, so that what is constant can be told from what grows.
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
from pathlib import Path
from typing import Any

RECIPES, BATCH = 60, 8
METRICS = ["insertion(step=512)", "deletion(step=512)", "sparseness", "complexity"]
POINTS = 16  # of the curves that two of the metrics keep
BATCH_OF_UNITS = 1024
OPEN = "import sys; from sightline.bench.store.store import Store; print(len(Store(sys.argv[1]).keys()))"
CLI = "from sightline.cli.main import main; main()"


def make_store(folder: Path, units: int, *, loose: bool) -> None:
    """Write a store of about `units` finished units."""
    from sightline.bench.plan import make_plan
    from sightline.bench.run import Callback, run
    from sightline.bench.store.store import Store

    class Planned(Exception):
        """The plan is written; the rest is drawn."""

    class Stop(Callback):
        def planned(self, *_: Any) -> None:
            raise Planned

    chunks = max(units // RECIPES, 1)
    plan = make_plan(
        {
            "name": "growth",
            "models": ["bundled/shapes-cnn"],
            "methods": [f"smooth_grad(samples={count})" for count in range(1, RECIPES + 1)],
            "metrics": METRICS,
            "dataset": f"shapes(count={chunks * BATCH})",
            "batch": BATCH,
            "controls": False,
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


def write_packs(store: Any, manifest: Any) -> None:
    """Write the units into packs, as compaction does."""
    import numpy as np

    from sightline.bench.store.pack_writer import new_pack
    from sightline.bench.unit_slots import slots_of

    slots, random = slots_of(manifest), np.random.default_rng(0)
    with new_pack(store) as pack:
        for first in range(0, len(slots), BATCH_OF_UNITS):
            pack.add(drawn_rows(manifest, slots[first : first + BATCH_OF_UNITS], random))


def drawn_rows(manifest: Any, slots: list[Any], random: Any) -> Any:
    """Return rows of some units as a pyarrow table."""
    import numpy as np
    import pyarrow as pa

    from sightline.bench.store.rows import make_row, schema
    from sightline.bench.unit_slots import unit_at

    count, metrics = BATCH * len(METRICS), list(manifest.models[0].metrics)
    total = count * len(slots)
    units = [unit_at(manifest, slot) for slot in slots]
    fixed = make_row(units[0], "", metrics[0], "", "{}", target=1, label=1, forward=1.0)
    columns: dict[str, Any] = {name: [value] * total for name, value in fixed.items()}
    columns["unit"] = [slot.key for slot in slots for _ in range(count)]
    columns["recipe"] = [unit.recipe for unit in units for _ in range(count)]
    columns["recipe_source"] = [unit.source_of(metrics[0])[0] for unit in units for _ in range(count)]
    columns["metric"] = [metric for _ in units for metric in metrics for _ in range(BATCH)]
    columns["metric_source"] = [units[0].source_of(name)[1] for _ in units for name in metrics for _ in range(BATCH)]
    columns["image"] = [image for unit in units for _ in metrics for image in unit.images]
    columns["value"] = random.random(total)
    lengths = np.tile(np.repeat([POINTS, POINTS, 0, 0], BATCH), len(slots))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
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
        "report": ["-c", CLI, "report", store, "--json", "--resamples", "200"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--rows", type=int, nargs="+", help="measure the report alone, of stores of about as many rows")
    parser.add_argument("--loose", action="store_true", help="one file per unit")
    parser.add_argument("--skip", nargs="*", default=[], help="what not to measure, such as report")
    parser.add_argument("--folder", type=Path, help="keep the stores there, and use those that are there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=Path, help="only make a store, in this folder")
    given = parser.parse_args()
    if given.make:
        make_store(given.make, given.units, loose=given.loose)
        return
    with tempfile.TemporaryDirectory() as temporary:
        base, found = given.folder or Path(temporary), {}
        wanted = {"report"} if given.rows else {"open", "status", "resume", "report"} - set(given.skip)
        for size in [rows // (BATCH * len(METRICS)) for rows in given.rows or ()] or [RECIPES, given.units]:
            folder = base / f"{size}-{'loose' if given.loose else 'packed'}"
            if not (folder / "made").exists():
                words = [__file__, "--units", str(size), "--make", str(folder), *(["--loose"] if given.loose else [])]
                subprocess.run([sys.executable, *words], check=True)  # a child's memory counts from its parent's
                (folder / "made").touch()
            found[size // RECIPES * RECIPES] = {
                name: measure(words) for name, words in commands(folder).items() if name in wanted
            }
    if given.json:
        print(json.dumps(found))
        return
    print(f"{'units':>8} {'rows':>9} {'command':8} {'seconds':>9} {'processor':>10} {'megabytes':>10}")
    for units, results in found.items():
        for name, result in results.items():
            numbers = f"{result['seconds']:9.2f} {result['processor']:10.2f} {result['megabytes']:10.0f}"
            print(f"{units:8} {units * BATCH * len(METRICS):9} {name:8} {numbers}")


if __name__ == "__main__":
    main()
