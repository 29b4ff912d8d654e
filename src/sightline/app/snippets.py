"""The Python lines and the command that give what the page shows."""

from __future__ import annotations

import shlex

from sightline.app.question import Question

__all__ = ["command_of", "python_of"]


def python_of(question: Question, recipe: str | None = None) -> str:
    """Return the lines that make a map from Python, or rank the whole panel."""
    if question.words:
        target = f", target=sightline.TextSimilarity({question.words!r})"
    elif question.box is not None:
        target = f", target=sightline.Box({question.box})"
    else:
        target = "" if question.target is None else f", target={question.target}"
    named = question.picture.name
    lines = ["import sightline", "", f"model = sightline.load({question.model!r})"]
    if question.prompt:
        lines[-1] = f"model = sightline.load({question.model!r}, prompt={question.prompt!r}).answering({named!r})"
    if recipe is None:
        options = f"{list(question.recipes)!r}{target}, fills={question.fills}"
        lines += [f"ranking = sightline.rank(model, {named!r}, {options})", "ranking.verdicts"]
    else:
        lines += [f"attribution = sightline.explain(model, {named!r}, {recipe!r}{target})"]
        lines += ["attribution.overlay()"]
    return "\n".join(lines)


def command_of(question: Question, recipe: str | None = None) -> str:
    """Return the command that makes the same pictures; empty for a text, which the command line does not take."""
    if question.words:
        return ""
    words = ["sightline", "explain", question.picture.name, "--model", question.model]
    for each in [recipe] if recipe else question.recipes:
        words += ["--method", each]
    words += ["--prompt", question.prompt] if question.prompt else []
    if question.box is not None:
        words += ["--target", f"box:{question.box}"]
    elif question.target is not None:
        words += ["--target", str(question.target)]
    return shlex.join(words)
