"""Explain many image files: each is written as soon as it is done, and a run that was stopped goes on where it ended.

In the output folder every image has a subfolder with an overlay per map; ``index.html`` shows all of them, or lists
them where there are so many that they are split over several pages. What a finished image needs to be shown again is
kept in the folder ``.sightline`` beside them, so that nothing is explained twice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from sightline import __version__
from sightline.audit.panel import ExplainedImage, explain_image, map_cost, panel_of, picture_targets
from sightline.citations import bibtex
from sightline.data.dataset import Dataset, dataset_sources, open_dataset
from sightline.data.images import ImageSource, image_sources
from sightline.errors import (
    USAGE_ERRORS,
    SightlineError,
    TargetError,
    UnsupportedMethod,
    UnsupportedModel,
    warn,
)
from sightline.files import check_folder, free_name, write_output, write_pictures
from sightline.models.adapter import Adapter
from sightline.models.inputs import Picture, adapt, prepare
from sightline.models.passes import ready
from sightline.models.vision_language.adapter import VisionLanguage
from sightline.models.zoo.ids import versions
from sightline.progress import Advance
from sightline.recipe import text
from sightline.registry import METRICS
from sightline.report.page import (
    ExplainPage,
    Link,
    RenderedSection,
    image_section,
    load_template,
    page_bytes,
    render_section,
)
from sightline.types import Enlarge, Method

__all__ = ["FileRun", "explain_files"]

Record = dict[str, Any]

PER_PAGE = 20  # images; each weighs about 300 kB on it
KEPT = ".sightline"  # the folder of what is known of finished images
DIGITS = 3  # of the logits that tell one model from another


def explain_files(
    model: Any,
    images: Sequence[str | PathLike[str] | ImageSource] | str | PathLike[str],
    methods: Sequence[Any] | str | None = None,
    targets: Sequence[Any] = (),
    *,
    out: str | PathLike[str],
    data: str | Dataset | None = None,
    limit: int | None = None,
    enlarge: Enlarge | None = None,
    seed: int | None = None,
    step: int | None = None,
    page: bool = True,
    per_page: int = PER_PAGE,
    resume: bool = True,
    advance: Advance | None = None,
    command: str = "",
) -> FileRun:
    """Explain image files with several methods, and rank the maps of each, as ``sightline explain`` does.

    The work is done while the run is iterated over: each image gives a record of plain data as soon as its overlays are
    written, and what cannot be read or explained a record with an ``error``.

    Args:
        model: as for `explain`.
        images: files, folders, and patterns such as ``photos/*.jpg``, or what `image_sources` has listed.
        methods: recipes or built methods; by default a panel that suits the model, controls included.
        targets: what is explained of each image, one after another; by default the classes that a data set says it
            shows, else the predicted class.
        out: the folder for what is written.
        data: a data set, explained after the files.
        limit: how many of its images.
        enlarge: how maps become pixels; None as each method says.
        seed: of every method that draws random numbers and leaves its seed at the default.
        step: pixels per step of insertion and deletion; by default 1/28 of the image.
        page: write ``index.html``; also when the run is stopped, with the images that are done.
        per_page: with more images than this, the index lists them and shows them on pages of so many.
        resume: leave out images that the folder already has, explained by the same methods on the same model.
        advance: hears what each map has cost, in forward passes.
        command: what makes the page again, to be shown on it.

    >>> import sightline, tempfile
    >>> from sightline.data.shapes import Shapes
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> Image.fromarray(Shapes(seed=1)[0].image).save(folder / "a.png")
    >>> run = explain_files(sightline.load("bundled/shapes-cnn"), folder, ["grad_cam"], out=folder / "out")
    >>> [(Path(record["path"]).name, record["label"]) for record in run]
    [('a.png', 'triangle')]
    """
    adapter = adapt(model)
    given = [images] if isinstance(images, str | PathLike) else list(images)
    listed = [one for one in given if isinstance(one, ImageSource)]
    sources, failed = image_sources([one for one in given if not isinstance(one, ImageSource)])
    if data is not None:
        sources += dataset_sources(open_dataset(data) if isinstance(data, str) else data, limit)
    errors = [{"path": path, "error": str(error)} for path, error in failed]
    panel = panel_of(adapter, methods, seed)
    check_folder(Path(out))
    if page:
        load_template()  # whatever it needs is missing now, not when the images are done
    return FileRun(
        adapter, tuple(panel), (*listed, *sources), tuple(errors), tuple(targets), Path(out), step, enlarge,
        methods is not None, page, per_page, resume, advance,
        command or "sightline.report.explain_files(model, images, out=…)",
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Work:
    """One target of one image, the subfolder for what is written of it, and its share of what an image costs."""

    source: ImageSource
    photograph: Picture | None
    model: Adapter
    batch: Tensor
    target: Any
    folder: str
    share: float


@dataclass(frozen=True, eq=False)
class FileRun:
    """Images that are explained one by one while this is iterated over; `len` is how many, once for every target.

    Attributes:
        model: the adapter.
        panel: the methods.
        sources: the images.
        errors: of paths that name no image.
        targets: what is explained of each image; empty for what a data set says it shows, or what is predicted.
        out: the folder for what is written.
        step: pixels per step of insertion and deletion; None for the usual share.
        enlarge: how maps become pixels; None as each method says.
        named: the methods were asked for, so that one that cannot work stops the run.
        page: write a page.
        per_page: images on a page where there are several.
        resume: leave out what is done.
        advance: hears what each map has cost.
        command: what makes the page again.
        resumed: how many images were done before.
    """

    model: Adapter
    panel: tuple[Method, ...]
    sources: tuple[ImageSource, ...]
    errors: tuple[Record, ...]
    targets: tuple[Any, ...]
    out: Path
    step: int | None
    enlarge: Enlarge | None
    named: bool
    page: bool
    per_page: int
    resume: bool
    advance: Advance | None
    command: str
    resumed: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sources) * max(1, len(self.targets))

    def __iter__(self) -> Iterator[Record]:
        """Explain what is not done yet; yield a record for every image, and one for every error."""
        yield from self.errors
        self.resumed.clear()
        done: dict[str, Record] = {}
        taken = {"index.html", KEPT}
        try:
            for source in self.sources:
                yield from self._explain_source(source, taken, done)
            self._forget_others(done)
        finally:  # also when the run is stopped: there is a page of what was done
            if self.page and done:
                self._write_pages(done)

    @property
    def cost(self) -> float:
        """What an image costs, in forward passes; an estimate, for the time left."""
        return sum(map_cost(method, self.model, fills=len(self.panel) > 1) for method in self.panel)

    def _explain_source(self, source: ImageSource, taken: set[str], done: dict[str, Record]) -> Iterator[Record]:
        """Explain all that is asked of an image; one that cannot be read is an error and the others go on."""
        count = max(1, len(self.targets))
        try:
            photograph, batch = prepare(self.model, source)
            model, targets = self._asked(source, batch)
        except TargetError:
            raise
        except SightlineError as error:
            yield {"path": source.path, "error": str(error)}
            self._skip(source, count)
            return
        for target in targets:
            folder = free_name(source.stem, taken)
            work = _Work(source, photograph, model, batch, target, folder, count / len(targets))
            yield from self._explain(work, done)

    def _asked(self, source: ImageSource, batch: Tensor) -> tuple[Adapter, list[Any]]:
        """Return the adapter to explain, and what is explained of an image; of an answer, every word unless told."""
        if not isinstance(self.model, VisionLanguage):
            return self.model, picture_targets(source, self.targets, self.model)
        answered = self.model if self.model.answer_tokens else self.model.answering(batch)
        return answered, list(self.targets or range(len(answered.words)))

    def _explain(self, work: _Work, done: dict[str, Record]) -> Iterator[Record]:
        """Explain one target of an image, unless it is done."""
        image, path = None, work.source.path
        try:
            key = self._key(work)
            entry = self._known(key) if self.resume else None
            if entry is None:
                image = explain_image(
                    work.model, work.batch, self.panel, work.target, photograph=work.photograph,
                    name=_heading(work), step=self.step, enlarge=self.enlarge,
                    advance=_share(self.advance, work.share),
                )  # fmt: skip
        except TargetError:
            raise
        except SightlineError as error:
            yield {"path": path, "error": str(error)}
            self._skip(work.source, work.share)
            return
        if image is None:
            self.resumed.append(path)
            self._skip(work.source, work.share)
        else:
            failures = self._failures(path, image)
            yield from failures
            entry = self._write(key, work.folder, image, failed=bool(failures)) if image.maps else None
        if entry is not None:
            done[key] = entry["section"] | {"html": ""}  # for the overview; the pages read it again
            yield {"path": path, **_said(work.model), **self._placed(entry["record"])}

    def _skip(self, source: ImageSource, share: float) -> None:
        if self.advance is not None:
            self.advance(share * self.cost, source.name)

    def _failures(self, path: str, image: ExplainedImage) -> list[Record]:
        """Stop at a named recipe that cannot work; leave out what the panel offered in vain; return the rest."""
        errors = []
        for failure in image.failures:
            if self.named and isinstance(failure.error, USAGE_ERRORS):
                raise failure.error
            if isinstance(failure.error, UnsupportedMethod | UnsupportedModel):
                warn(f"left out {failure.recipe}: {failure.error}", stacklevel=2)
            else:
                errors.append({"path": path, "error": str(failure.error), "recipe": failure.recipe})
        return errors

    # ---- what is kept of an image ----------------------------------------------------------------------------------

    def _key(self, work: _Work) -> str:
        """Return what tells an explanation from others: pixels, the model's answer, methods, target, place, version."""
        with ready(work.model):
            answer = work.model.predict(work.batch).double().round(decimals=DIGITS).tolist()
        words = [
            __version__, work.folder, work.source.name, repr(answer), repr(work.target), repr(self.step),
            repr(self.enlarge), repr(self.page), repr(_said(work.model)), *map(text, self.panel),
        ]  # fmt: skip
        digest = hashlib.blake2b("\0".join(words).encode("utf-8", "replace"), digest_size=12)
        digest.update(work.batch.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    def _known(self, key: str) -> Record | None:
        """Return what is kept of an image; None where it is not done, a map of it failed, or its overlays are gone."""
        try:
            entry: Record = json.loads((self.out / KEPT / f"{key}.json").read_bytes())
            overlays = [self.out / scored["overlay"] for scored in entry["record"]["maps"]]
            whole = not entry["failed"] and all(path.is_file() for path in overlays)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return entry if whole else None

    def _write(self, key: str, folder: str, image: ExplainedImage, *, failed: bool) -> Record:
        """Write an overlay per map, then what is known of the image; return the latter."""
        record, section = image.json(), image_section(image)
        pictures = [
            (card.recipe, card.picture, {"recipe": card.recipe, "target": section.target}) for card in section.maps
        ]
        for scored, path in zip(record["maps"], write_pictures(self.out / folder, pictures), strict=True):
            scored["overlay"] = f"{folder}/{path.name}"
        rendered = asdict(render_section(section, f"image-{key}")) if self.page else {}
        entry = {"record": record, "section": rendered, "failed": failed}
        write_output(self.out / KEPT / f"{key}.json", json.dumps(entry).encode())
        return entry

    def _placed(self, record: Record) -> Record:
        """Return a record whose overlays are paths from here."""
        maps = [scored | {"overlay": str(self.out / scored["overlay"])} for scored in record["maps"]]
        return record | {"maps": maps}

    def _forget_others(self, done: dict[str, Record]) -> None:
        """Remove what was kept of images that are no part of this run."""
        for path in (self.out / KEPT).glob("*.json"):
            if path.stem not in done:
                with suppress(OSError):
                    path.unlink()

    # ---- pages -----------------------------------------------------------------------------------------------------

    def _write_pages(self, done: dict[str, Record]) -> None:
        """Write one page of all images, or an index and pages of `per_page` images each."""
        keys = list(done)
        groups = [keys[first : first + self.per_page] for first in range(0, len(keys), self.per_page)]
        if len(groups) == 1:
            write_output(self.out / "index.html", page_bytes(self._page(self._sections(groups[0]))))
            self._remove_pages_after(0)
            return
        listed: list[RenderedSection] = []
        for number, group in enumerate(groups, 1):
            page = replace(self._page(self._sections(group)), links=_links(number, len(groups)))
            write_output(self.out / _page_name(number), page_bytes(page))
            listed += [RenderedSection(**done[key] | {"page": _page_name(number)}) for key in group]
        write_output(self.out / "index.html", page_bytes(replace(self._page(listed), overview=True)))
        self._remove_pages_after(len(groups))

    def _sections(self, keys: Sequence[str]) -> list[RenderedSection]:
        """Read what a page shows; never more than a page of it is in memory."""
        files = [self.out / KEPT / f"{key}.json" for key in keys]
        return [RenderedSection(**json.loads(file.read_bytes())["section"]) for file in files]

    def _remove_pages_after(self, last: int) -> None:
        """Remove pages of an earlier, longer run."""
        for path in self.out.glob("page-*.html"):
            number = re.fullmatch(r"page-(\d+)\.html", path.name)
            if number and int(number[1]) > last:
                with suppress(OSError):
                    path.unlink()

    def _page(self, sections: Sequence[RenderedSection]) -> ExplainPage:
        return ExplainPage(
            title="What did the model look at?",
            model=self.model.name,
            sections=sections,
            command=self.command,
            versions=versions(),
            metric_notes=_metric_notes(self.step),
            bibtex=bibtex(*map(text, self.panel), "insertion", "deletion"),
        )


def _said(model: Adapter) -> dict[str, str]:
    """Return what a vision-language model was asked and what it answered, as plain data; nothing of other models."""
    return {"prompt": model.prompt, "answer": model.answer} if isinstance(model, VisionLanguage) else {}


def _heading(work: _Work) -> str:
    """Return what an image is called on the page: its name, and the answer about it where there is one."""
    said = _said(work.model)
    return f"{work.source.name}: {said['answer']}" if said else work.source.name


def _share(advance: Advance | None, share: float) -> Advance | None:
    """Let a progress bar count a share of what it is told."""
    return None if advance is None else lambda amount, words: advance(share * amount, words)


def _page_name(number: int) -> str:
    return f"page-{number}.html"


def _links(number: int, count: int) -> list[Link]:
    """Return the links at the top of a page: the index, and the pages before and after."""
    links = [Link("All images", "index.html")]
    links += [Link("Previous page", _page_name(number - 1))] if number > 1 else []
    return links + ([Link("Next page", _page_name(number + 1))] if number < count else [])


def _metric_notes(step: int | None) -> dict[str, str]:
    """Return a sentence on each score of the page."""
    steps = "1/28 of the pixels" if step is None else f"{step} pixels"
    notes = {name: f"{METRICS[name].summary} {steps} per step." for name in ("insertion", "deletion")}
    notes["ins_del"] = f"{METRICS['ins_del'].summary} A single map is judged by it."
    notes["score"] = (
        "The mean of insertion \N{MINUS SIGN} deletion over several fills, at coarser steps: a weak and a strong blur, "
        "zero, noise and, on transformers, dropped tokens. A fill under which the wholly filled image keeps more than "
        "half of the class's probability is left out. Several maps are ranked by it."
    )
    return notes
