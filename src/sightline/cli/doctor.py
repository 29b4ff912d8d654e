"""``sightline doctor``: is everything here that sightline needs, and does it work?"""

from __future__ import annotations

from typing import Annotated

import typer

from sightline.cli import console

__all__ = ["doctor"]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False) -> None:
    """Check the installation: versions, device, optional packages, bundled weights, a self-test, a place to write."""
    from sightline.cli.checkup import checks, environment

    facts = environment()
    found = list(checks())
    healthy = not any(check.state == "broken" for check in found)
    if as_json:
        console.print_json({"healthy": healthy, "environment": facts, "checks": [check.json() for check in found]})
    else:
        from sightline.cli.tables import fields_table

        console.show(fields_table(list(facts.items()), ("", "")), "")
        marks = {"well": "ok", "absent": "absent", "broken": "BROKEN"}
        console.show(fields_table([(marks[check.state], check.name, check.finding) for check in found], ("", "", "")))
        console.show("", "everything that is installed works" if healthy else "something is broken; see above")
    if not healthy:
        raise typer.Exit(console.FAILED)
