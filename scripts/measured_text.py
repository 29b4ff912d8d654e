"""Write what docs/measured holds into the guides and the README: claims, leaderboards, speed, growth, memory and more.

    python scripts/measured_text.py

A page has a place for it between two comments, ``<!-- measured: NAME -->`` and ``<!-- end -->``; what stands there is
written anew. tests/architecture/test_measured_text.py compares.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median, stdev

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = {"iia": "IIA", "var": "VAR", "skip_plus": "SkipPLUS", "caap": "CAAP", "mda": "MDA"}
PLACE = re.compile(r"(<!-- measured: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Row = dict[str, str]


def read(name: str) -> list[Row]:
    """Return the rows of a table of measurements."""
    with (DOCS / "measured" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# ---- claims --------------------------------------------------------------------------------------------------------


def claims(paper: str | None = None) -> Iterator[tuple[str, str, list[Row]]]:
    """Return paper, claim and rows of each claim, of one paper or of all."""
    for (own, claim), rows in groupby(read("claims"), key=lambda row: (row["paper"], row["claim"])):
        if paper in (None, own):
            yield own, claim, list(rows)


def verdict(rows: Sequence[Row]) -> str:
    """Say what the comparisons of a claim mean for it: it holds where all of them hold, and fails where one does.

    >>> verdict([{"verdict": "holds"}, {"verdict": "holds"}, {"verdict": "cannot be told"}])
    'cannot be told (2 of 3 hold)'
    >>> verdict([{"verdict": "holds"}, {"verdict": "does not hold"}])
    'does not hold (1 of 2 holds, 1 the reverse)'
    """
    counts = Counter(row["verdict"] for row in rows)
    holds, fails = counts["holds"], counts["does not hold"]
    if len(rows) == 1:
        return rows[0]["verdict"]
    said = f"{holds} of {len(rows)} {'holds' if holds == 1 else 'hold'}{f', {fails} the reverse' if fails else ''}"
    return f"{'does not hold' if fails else 'holds' if holds == len(rows) else 'cannot be told'} ({said})"


def signed(row: Row) -> str:
    """Return a difference with its sign and its standard error."""
    value = row["difference"]
    return f"{'−' + value[1:] if value.startswith('-') else '+' + value} ± {row['error']}"


def spread(rows: Sequence[Row]) -> str:
    """Return the differences under each metric, from the lowest to the highest."""
    if not rows[0]["metric"]:
        return "not measured"
    parts = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own = sorted((row for row in rows if row["metric"] == metric), key=lambda row: float(row["difference"]))
        ends = signed(own[0]) if len(own) == 1 else f"{signed(own[0])} to {signed(own[-1])}"
        share = re.search(r"stages=\(([\d.]+),\)", metric)
        parts.append(f"`{metric.partition('(')[0]}`{f' at {share[1]}' if share else ''} {ends}")
    return "; ".join(parts)


def images(rows: Sequence[Row]) -> str:
    """Return on how many images the comparisons were made."""
    return ", ".join(sorted({row["images"] for row in rows if row["images"]}, key=int))


def claims_of(paper: str) -> str:
    """Return the claims of a paper as a table."""
    rows = [(claim, verdict(rows), spread(rows), images(rows)) for _, claim, rows in claims(paper)]
    return table(("claim", "here", "difference, positive where the claim is right", "images"), rows)


def all_claims() -> str:
    """Return every comparison, claim by claim."""
    parts = []
    for paper, own in groupby(claims(), key=lambda each: each[0]):
        parts.append(f"## {paper}\n")
        for _, claim, rows in own:
            if not rows[0]["metric"]:
                parts.append(f"**{claim}** Here: {verdict(rows)}, not measured.\n")
                continue
            cells = [
                (f"`{r['metric']}`", f"`{r['recipe']}` {r['mean']}", f"`{r['than']}` {r['other_mean']}", signed(r),
                 r["images"], r["verdict"])
                for r in rows
            ]  # fmt: skip
            heads = ("metric", "claimed better", "than", "difference", "images", "verdict")
            parts.append(f"**{claim}** Here: {verdict(rows)}.\n\n{table(heads, cells)}")
    return "\n" + "\n".join(parts)


def overview() -> str:
    """Return how many claims of each paper hold."""
    kinds = ("holds", "does not hold", "cannot be told")
    rows = []
    for paper in dict.fromkeys(row["paper"] for row in read("claims")):
        counts = Counter(verdict(rows).partition(" (")[0] for _, _, rows in claims(paper))
        rows.append((paper, *(str(counts[kind]) for kind in kinds)))
    return table(("paper", *kinds), rows)


# ---- the leaderboard -----------------------------------------------------------------------------------------------


def board(kind: str) -> str:
    """Return the leaderboard of a model: one row per method, means with standard errors, letters of ties."""
    rows = read(f"leaderboard-{kind}")
    metrics = [name for name in rows[0] if f"{name}_error" in rows[0]]
    told = {metric for metric in metrics if len({row[f"{metric}_ties"] for row in rows}) > 1}
    heads = ["method", *(heading(name) for name in metrics), "passes", "images"]
    cells = [
        [
            f"`{row['recipe']}`{row['note']}",
            *(cell(row, metric, ties=metric in told) for metric in metrics),
            row["passes"],
            row["images"],
        ]
        for row in rows
    ]
    return table(heads, cells)


def heading(metric: str) -> str:
    """Return a metric's name with what tells two of one name apart."""
    name, _, options = metric.partition("(")
    return f"{name} (mean colour)" if "mean" in options else name


def cell(row: Row, metric: str, *, ties: bool = False) -> str:
    """Return a mean with its standard error, and its letters where some differ."""
    if not row[metric]:
        return "–"
    letters = row[f"{metric}_ties"] if ties else ""
    return f"{row[metric]} ± {row[f'{metric}_error']}{' ' + letters if letters else ''}"


def agreement(kind: str) -> str:
    """Return Kendall's tau between every two metrics."""
    rows = read(f"leaderboard-{kind}-agreement")
    names = list(dict.fromkeys(name for row in rows for name in (row["one"], row["other"])))
    values = {frozenset((row["one"], row["other"])): row["tau"] for row in rows}
    cells = [
        [heading(one), *("1" if one == other else values.get(frozenset((one, other)), "–") for other in names)]
        for one in names
    ]
    return table(["tau", *map(heading, names)], cells)


# ---- the default panel ---------------------------------------------------------------------------------------------


def panel(kind: str) -> str:
    """Return the recipes that were chosen and those of the panel before, on images that chose nothing."""
    metrics = ("single_deletion", "average_precision")
    heads = ("recipe", "score", *(metric.replace("_", " ") for metric in metrics), "passes", "")
    cells = [
        (f"`{row['recipe']}`", row["score"], *(cell(row, metric) for metric in metrics), row["passes"], row["note"])
        for row in read(f"default-panel-{kind}")
    ]
    return table(heads, cells)


# ---- other packages ------------------------------------------------------------------------------------------------

MODELS = {"vit_tiny": "ViT-Tiny", "efficientnet_lite0": "EfficientNet-Lite0", "resnet50": "ResNet-50"}
KNOWN_PAIRS = (
    ("grad_cam", "grad-cam GradCAM"), ("layer_cam", "grad-cam LayerCAM"), ("eigen_cam", "grad-cam EigenCAM"),
    ("guided_grad_cam", "captum GuidedGradCam"), ("conductance", "captum LayerConductance"),
    ("lrp", "zennit EpsilonPlus"), ("occlusion", "captum Occlusion"), ("kernel_shap", "captum KernelShap"),
    ("ig", "captum IntegratedGradients"), ("ixg", "captum InputXGradient"), ("smooth_grad", "captum NoiseTunnel"),
    ("deep_lift", "captum DeepLift"), ("pixel_flipping", "quantus PixelFlipping"),
)  # fmt: skip


def _pairs() -> dict[tuple[str, str], dict[str, Row]]:
    """Return the measurements of every method or metric and peer, by model."""
    rows: dict[tuple[str, str], dict[str, Row]] = {}
    for row in read("peers"):
        rows.setdefault((row["recipe"].partition("(")[0], row["peer"]), {})[row["model"]] = row
    return rows


def peers_in_short() -> str:
    """Return the ratios of well-known methods on the two trained models."""
    rows = _pairs()
    models = [model for model in MODELS if model != "resnet50"]
    heads = ("here", "there", *(f"{MODELS[model]}" for model in models))
    cells = [
        (f"`{name}`", peer, *(_ratio(by_model.get(model)) for model in models))
        for name, peer in KNOWN_PAIRS
        if (by_model := rows.get((name, peer)))
    ]
    return table(heads, cells)


def peers() -> str:
    """Return how long methods and metrics take beside those of other packages, and beside bare passes."""
    rows = _pairs()
    heads = ("here", "there", *(f"{name}, peer / ours" for name in MODELS.values()), "ours / bare passes")
    cells = [
        (f"`{name}`", peer, *(_ratio(by_model.get(model)) for model in MODELS), _bare(by_model))
        for (name, peer), by_model in rows.items()
    ]
    return table(heads, cells)


def _ratio(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{row['ratio']} ({row['low']}–{row['high']})" if row["ratio"] else "refused"


def _bare(by_model: dict[str, Row]) -> str:
    found = [by_model[model]["bare"] for model in MODELS if model in by_model and by_model[model]["bare"]]
    return ", ".join(found) or "–"


def peer_reasons(least: float = 0.98) -> str:
    """Return why a peer is faster, for the methods of which the interval says so."""
    slower: dict[str, list[str]] = {}
    for row in read("peers"):
        if row["high"] and float(row["high"]) < least:
            slower.setdefault(row["reason"], []).append(f"`{row['recipe'].partition('(')[0]}`")
    if not slower:
        return f"Of no pair does the whole interval lie below {least:g}.\n"
    listed = "".join(f"* {', '.join(dict.fromkeys(names))}: {reason}.\n" for reason, names in slower.items())
    return f"The whole interval lies below {least:g}, and this is the likely reason, of\n\n{listed}"


# ---- searches of MDA ------------------------------------------------------------------------------------------------

SEARCHED = ("ins_del_mda", "mas_ins_del")


def searches() -> str:
    """Return passes and scores of MDA's searches, and the paired differences from the exact one."""
    measured: dict[str, dict[str, dict[str, float]]] = {}  # recipe -> image -> name -> value
    for row in read("mda"):
        of_image = measured.setdefault(row["recipe"], {}).setdefault(row["image"], {})
        of_image[row["metric"].partition("(")[0]] = float(row["value"])
    exact, cells = measured["mda"], []
    for recipe, images in measured.items():
        pairs = [(own, exact[image]) for image, own in images.items() if image in exact]
        share = middle([own["passes"] / other["passes"] for own, other in pairs])
        scores = [middle([own[name] for own, _ in pairs]) for name in ("passes", "ins_del_mda")]
        away = [middle([own[name] - other[name] for own, other in pairs], sign="+") for name in SEARCHED]
        less = [""] * len(away) if recipe == "mda" else away
        cells.append((f"`{recipe}`", str(len(pairs)), scores[0], share, scores[1], *less))
    heads = ("recipe", "photographs", "passes", "share", "`ins_del_mda`", "difference", "`mas_ins_del`, difference")
    return table(heads, cells)


def middle(values: Sequence[float], sign: str = "") -> str:
    """Return a mean with its standard error."""
    digits = 0 if max(values) > 10 else 3
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    return f"{mean:{sign}.{digits}f} ± {error:.{digits}f}".replace("-", "−")


# ---- growth ---------------------------------------------------------------------------------------------------------

AXES = ("tokens", "channels", "classes", "images", "pixels")


def growth(what: str) -> str:
    """Return the fitted exponents of time or memory, a family a row and an axis a column."""
    rows = {(row["family"], row["axis"]): row for row in read("growth")}
    recipes = {row["family"]: row["recipe"] for row in read("growth")}
    cells = []
    for family, recipe in recipes.items():
        exponents = (_exponent(rows.get((family, axis)), what) for axis in AXES)
        cells.append((family, recipe if family == "model" else f"`{recipe}`", *exponents))
    return table(("family", "recipe", *AXES), cells)


def _exponent(row: Row | None, what: str) -> str:
    """Return an exponent with its interval, if that is worth showing."""
    if row is None:
        return "–"
    exponent, low, high = (float(row[f"{what}_{part}"]) + 0.0 for part in ("exponent", "low", "high"))
    return f"{exponent:.2f} ({low:.2f}–{high:.2f})" if high - low >= 0.01 else f"{exponent:.2f}"


# ---- memory and mixed precision -------------------------------------------------------------------------------------

BOUNDS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # GiB
EXACT = 1e-3  # that results may differ by, as a share of a map's largest value


def memory() -> str:
    """Return which methods hold how much on a ViT-B/16 at 384 pixels, and where the declared peak is far from it."""
    rows = [row for row in read("memory_384") if row["gib"]]
    total = {row["method"]: float(row["gib"]) + float(row["options_gib"] or 0) for row in rows}
    cells = []
    for low, high in reversed([*pairwise(BOUNDS)]):
        own = sorted((name for name in total if low <= total[name] < high), key=lambda name: -total[name])
        if own:
            cells.append(
                (f"{low:g} to {high:g}", str(len(own)), ", ".join(f"`{name}` {total[name]:.2f}" for name in own))
            )
    ratios = {row["method"]: float(row["declared_gib"]) / max(float(row["gib"]), 1e-3) for row in rows}
    less = [f"`{name}`" for name, ratio in ratios.items() if ratio < 0.5]
    more = [f"`{name}`" for name, ratio in ratios.items() if ratio > 2]
    low, high = (", ".join(names) or "none" for names in (less, more))
    said = f"Less than half is declared by {low}, more than twice as much by {high}.\n"
    return f"\n{table(('GiB', 'methods', 'which'), cells)}\n{said}"


def autocast() -> str:
    """Return how far mixed precision moves maps, by model and precision, and which methods it leaves within 1e-3."""
    cells = []
    for model, own in groupby(read("autocast"), key=lambda row: row["model"]):
        rows = [row for row in own if row["bfloat16"]]
        for kind in ("bfloat16", "float16"):
            moved = {row["method"]: float(row[kind]) for row in rows if row[kind] != "fails"}
            within = [f"`{name}`" for name, share in moved.items() if share <= EXACT]
            fails = sum(row[kind] == "fails" for row in rows)
            middle = f"{median(moved.values()):.1%}"
            cells.append((MODELS[model], kind, str(len(rows)), str(fails), middle, ", ".join(within) or "none"))
    heads = ("model", "precision", "methods", "that fail", "median deviation", "within 1e-3")
    known = Counter(row["method"] for row in read("autocast"))
    missing = [f"`{row['method']}`" for row in read("memory_384") if known[row["method"]] < len(cells) // 2]
    left_out = (
        f"\nNot measured, or on one model only, for their many passes: {', '.join(missing)}.\n" if missing else ""
    )
    return f"\n{table(heads, cells)}{left_out}"


PARTS: dict[str, Callable[[], str]] = {
    **{f"claims-{guide}": (lambda paper=paper: claims_of(paper)) for guide, paper in GUIDES.items()},  # type: ignore[misc]
    "claims": all_claims,
    "claims-overview": overview,
    "peers": peers,
    "peers-in-short": peers_in_short,
    "peer-reasons": peer_reasons,
    "mda-searches": searches,
    "growth-time": lambda: growth("time"),
    "growth-memory": lambda: growth("memory"),
    "memory": memory,
    "autocast": autocast,
    **{
        f"leaderboard-{kind}": (lambda kind=kind: board(kind))  # type: ignore[misc]
        for kind in ("vit", "cnn", "vit-photographs", "cnn-photographs")
    },
    **{f"agreement-{kind}": (lambda kind=kind: agreement(kind)) for kind in ("vit", "cnn")},  # type: ignore[misc]
    **{f"default-panel-{kind}": (lambda kind=kind: panel(kind)) for kind in ("vit", "cnn")},  # type: ignore[misc]
}


def filled(page: str) -> str:
    """Return a page with every place in it written from the tables."""
    return PLACE.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}{found[3]}", page)


def pages() -> Iterator[Path]:
    """Return the README and the guides that have such a place."""
    for path in (DOCS.parent / "README.md", *sorted((DOCS / "guide").glob("*.md"))):
        if PLACE.search(path.read_text(encoding="utf-8")):
            yield path


if __name__ == "__main__":
    for each in pages():
        each.write_text(filled(each.read_text(encoding="utf-8")), encoding="utf-8")
