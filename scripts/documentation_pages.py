"""Write one page per method, operator, metric and data set, and the pages of model families, coverage and parity.

`docs/conf.py` runs it before every build, so nothing it writes is kept in the repository: pages and pictures lie in
docs/generated/. By hand: ``python scripts/documentation_pages.py``.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import shutil
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

from documentation_coverage import coverage_page, parity_page
from documentation_examples import MODELS, Example, dataset_picture, model, run_all, workers
from documentation_gallery import gallery_pages
from documentation_notebooks import write as write_notebooks
from documentation_text import body, inline

from sightline.catalogue.cards import Card, card
from sightline.catalogue.options import option_texts
from sightline.data.dataset import DATASETS, DatasetSpec, options_of
from sightline.data.selection import Selection
from sightline.registry import METHODS, METRICS, OPERATORS, Spec

DOCS = Path(__file__).parent.parent / "docs"
FOLDER = DOCS / "generated"
MEASURED = {
    "pets-vit": ("ViT-Tiny/16, 142 photographs of pets", "average_precision", "pointing_game"),
    "pets-cnn": ("EfficientNet-Lite0, 40 photographs of pets", "average_precision", "ins_del(step=3584)"),
}
NEEDS = {
    "gradient": "gradients",
    "layers": "inner layers",
    "attention": "attention maps",
    "tokens": "tokens",
    "cuts": "layers to cut the network at",
    "language": "a vision-language model and its answer",
    "masks": "masks of the evidence",
    "method": "the method that made the map, which is run again",
}
FAMILIES = {
    "vit.timm": ("Vision transformers of timm", "timm/vit_base_patch16_224"),
    "vit.torchvision": ("Vision transformers of torchvision", "torchvision/vit_b_16"),
    "vit.transformers": ("Vision transformers of Hugging Face", "hf/google/vit-base-patch16-224"),
    "vit.openclip": ("CLIP models of open_clip", "openclip/ViT-B-16:openai"),
    "vit.zero_shot": ("Zero-shot classifiers", "openclip/ViT-B-16:openai with classes=['cat', 'dog']"),
    "vit.wrapped": ("Your own module around a transformer", "sightline.adapt(module)"),
    "vision_language.adapter": ("Vision-language models of Hugging Face", "hf/OWNER/NAME with prompt='What is this?'"),
    "cnn.families": ("Convolutional networks of timm and torchvision", "timm/resnet50"),
    "cnn.hierarchical": ("Hierarchical transformers", "timm/swin_tiny_patch4_window7_224"),
    "cnn.generic": ("Your own convolutional network", "sightline.adapt(module)"),
    "blackbox": ("Black boxes", "sightline.adapt(function)"),
}
REGISTRIES = {"methods": METHODS, "operators": OPERATORS, "metrics": METRICS}
INTRODUCTIONS = {
    "methods": "A method turns a model, images and a target into an attribution. The pictures are drawn on the bundled "
    "models while this documentation is built.",
    "operators": "An operator turns a method into another method, and operators nest.",
    "metrics": "A metric gives one number per image. The arrow says which way is better.",
    "datasets": "A data set is opened by a line of text, in Python, on the command line or in a plan.",
}


def spec_page(spec: Spec, example: Example) -> str:
    """Return the page of a method, an operator or a metric."""
    facts = card(spec.name)
    sections = [
        f"# {spec.name}",
        inline(spec.summary),
        body(spec.doc),
        "## Use it",
        f"```python\n{facts.python}\n```",
        f"```sh\n{facts.command}\n```",
        "## Options",
        _options(facts.options, option_texts(spec.build)) or "It has none.",
        "## Facts",
        _facts(spec, facts),
        "## Example",
        _example(spec, example),
        *_measured(spec.name),
        "## Relatives",
        _relatives(spec),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def dataset_page(spec: DatasetSpec, picture: Path | None) -> str:
    """Return the page of a data set."""
    texts = {**option_texts(Selection), **option_texts(spec.build)}
    first = next((name for name, default in options_of(spec).items() if default == "required"), None)
    value = {"root": "'…'", "of": "shapes(count=40)", "path": "'…'"}.get(first or "", "'…'")
    text = f"{spec.name}({first}={value})" if first else spec.name
    sections = [
        f"# {spec.name}",
        inline(spec.summary),
        body(spec.doc),
        f'```python\nfrom sightline.data import open_dataset\n\ndataset = open_dataset("{text}")\n```',
        f'In a plan: `dataset = "{text}"`.',
        f"![The first images of {spec.name}](../pictures/{picture.name})" if picture else "",
        "## Files",
        f"```text\n{spec.layout}\n```" if "\n" in spec.layout or "/" in spec.layout else spec.layout,
        "## Options",
        _options(options_of(spec), texts),
        "## Protocols" if spec.protocols else "",
        "\n".join(
            f"- `{spec.name}(protocol='{name}')` sets {', '.join(f'`{key}={value!r}`' for key, value in fixed.items())}"
            for name, fixed in spec.protocols.items()
        ),
        f"Which images papers leave out: {spec.filters}." if spec.filters else "",
        f"Paper: {{cite:p}}`{spec.cite}`." if spec.cite else "",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def index_page(kind: str, specs: Iterable[Spec | DatasetSpec]) -> str:
    """Return the list of all pages of a kind, family by family."""
    ordered = sorted(specs, key=lambda spec: (spec.family, spec.name))
    lines = [f"# {'Data sets' if kind == 'datasets' else kind.capitalize()} one by one", "", INTRODUCTIONS[kind], ""]
    for family, members in groupby(ordered, key=lambda spec: spec.family):
        lines += [f"## {family.replace('_', ' ')}", ""]
        lines += [f"- [`{spec.name}`]({spec.name}.md){_arrow(spec)}: {inline(spec.summary)}" for spec in members]
        lines.append("")
    names = sorted(spec.name for spec in ordered)
    return "\n".join([*lines, "```{toctree}", ":hidden:", "", *names, "```", ""])


def _arrow(spec: Spec | DatasetSpec) -> str:
    return {"higher": " ↑", "lower": " ↓", "": ""}[getattr(spec, "direction", "")]


def _options(defaults: dict[str, str], texts: dict[str, str]) -> str:
    lines = []
    for name, default in defaults.items():
        shown = f"`{name}`, required" if default == "required" else f"`{name}={default}`"
        meaning = texts.get(name, "the method it is applied to." if name == "method" else "")
        lines.append(f"- {shown}: {inline(meaning)}" if meaning else f"- {shown}")
    return "\n".join(lines)


def _facts(spec: Spec, facts: Card) -> str:
    better = {"higher": "higher is better", "lower": "lower is better", "": ""}[spec.direction]
    rows = {
        "Family": spec.family.replace("_", " "),
        "Cost per image": spec.cost,
        "Needs": ", ".join(NEEDS[need] for need in facts.needs) or "nothing but the output",
        "Class": "the map is the same for every class" if spec.agnostic else "",
        "Direction": better,
        "Checked against": inline(spec.parity),
        "Paper": "; ".join(f"{text} {{cite:p}}`{key}`" for key, text in facts.citations.items()),
    }
    return "\n".join(f"- **{name}**: {text}" for name, text in rows.items() if text)


def _example(spec: Spec, example: Example) -> str:
    said = "\n".join(example.lines)
    if example.picture is None:
        return f"Neither bundled model offers what `{example.recipe}` needs:\n\n```text\n{said}\n```"
    intro = (
        f"`{example.recipe}` of three maps of a drawn picture, on `bundled/shapes-vit`:"
        if spec.kind == "metric"
        else f"`{example.recipe}` on the bundled models and a drawn picture:"
    )
    picture = f"![{spec.name} on a drawn picture](../pictures/{example.picture.parent.name}/{example.picture.name})"
    return f"{intro}\n\n{picture}\n\n```text\n{said}\n```"


@cache
def measured_rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a table of measurements."""
    with (DOCS / "measured" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _measured(name: str) -> list[str]:
    """Return the rows of the measured tables whose recipe contains a name."""
    lines = []
    for table, (title, first, second) in MEASURED.items():
        for row in measured_rows(table):
            if name in row["recipe"].replace("(", " ").replace(",", " ").replace(")", " ").split():
                values = ", ".join(f"{metric} {row[metric]} ± {row[f'{metric}_error']}" for metric in (first, second))
                lines.append(f"- `{row['recipe']}`, {title}: {values}")
    return ["## Measured", *["\n".join(lines)], "[All rows](../measured.md)."] if lines else []


def measured_page() -> str:
    """Return the tables of measurements."""
    parts = [
        "# Measured on photographs",
        "Mean ± standard error over photographs of pets with masks; the label was explained. Methods that share a "
        "letter cannot be told apart by average precision (paired permutation tests, Holm). The plans are "
        "`plans/pets-vit.toml` and `plans/pets-cnn.toml`; `sightline bench run plans/pets-cnn.toml "
        "--dataset FOLDER` repeats the second.",
    ]
    for table, (title, *_) in MEASURED.items():
        rows = measured_rows(table)
        metrics = [name for name in rows[0] if f"{name}_error" in rows[0]]
        parts.append(f"## {title}")
        head = ["method", *metrics, "alike", "forward", "backward"]
        lines = [_row(head), _row(["---"] * len(head))]
        for row in rows:
            values = [f"{row[name]} ± {row[f'{name}_error']}" for name in metrics]
            lines.append(_row([f"`{row['recipe']}`", *values, row["ties"], row["forward"], row["backward"]]))
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _relatives(spec: Spec) -> str:
    registry = {"method": METHODS, "operator": OPERATORS, "metric": METRICS}[spec.kind]
    names = [name for name in registry if registry[name].family == spec.family and name != spec.name]
    links = ", ".join(f"[`{name}`]({name}.md)" for name in names)
    family = f"In the same family: {links}." if links else "It is the only one of its family."
    return f"{family} [All {spec.kind}s](index.md)."


def models_page() -> str:
    """Return the page of model families: which are known by their own structure, and what each gives to methods."""
    lines = [
        "# Model families",
        "",
        "`sightline.load(ID)` or `sightline.adapt(module)` finds the family of a model by its class. What a family "
        "offers decides which methods run; `sightline.explain` names those that do where one does not.",
        "",
    ]
    for module, (title, example) in FAMILIES.items():
        doc = inspect.getdoc(importlib.import_module(f"sightline.models.{module}")) or ""
        lines += [f"## {title}", "", inline(doc), "", f"For instance `{example}`.", ""]
    lines += ["## What the bundled models offer", "", "| model | offers | methods that run |", "| --- | --- | --- |"]
    for name in MODELS:
        offers = model(name).offers
        run = sum(METHODS[each].needs <= offers for each in METHODS)
        lines.append(_row([f"`{name}`", ", ".join(NEEDS[need] for need in sorted(offers)), f"{run} of {len(METHODS)}"]))
    return "\n".join(lines) + "\n"


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all pages and pictures, and return the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    pictures = folder / "pictures"
    with workers() as pool:
        gallery = gallery_pages(pool)
        examples = run_all(pool, pictures)
    write_notebooks(folder / "notebooks")
    pages: dict[str, str] = gallery | {
        "measured.md": measured_page(),
        "coverage.md": coverage_page(),
        "parity.md": parity_page(),
        "models.md": models_page(),
    }
    for kind, registry in REGISTRIES.items():
        specs = [registry[name] for name in registry]
        pages |= {f"{kind}/{spec.name}.md": spec_page(spec, examples[kind, spec.name]) for spec in specs}
        pages[f"{kind}/index.md"] = index_page(kind, specs)
    sets = [DATASETS[name] for name in DATASETS]
    pages |= {f"datasets/{spec.name}.md": dataset_page(spec, dataset_picture(spec.name, pictures)) for spec in sets}
    pages["datasets/index.md"] = index_page("datasets", sets)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


if __name__ == "__main__":
    print(f"{len(write())} pages in {FOLDER}")
