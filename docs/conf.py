"""How the documentation is built: `make docs`."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.errors import ExtensionError

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

project = "sightline"
author = "The sightline authors"
copyright = author
version = release = installed("sightline")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
    "documentation_math",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]
exclude_patterns = ["_build"]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
default_role = "code"  # docstrings write `names` in single backquotes
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the fields of a dataclass are described once
napoleon_use_rtype = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_title = f"sightline {release}"


def _write_pages(app):
    import documentation_pages

    documentation_pages.write(Path(app.srcdir) / "generated")


def _write_twins(app, error):
    import documentation_notebooks
    import documentation_twins

    if error is None and app.builder.format == "html":
        documentation_notebooks.write(Path(app.outdir) / "notebooks")
        documentation_twins.write(Path(app.srcdir), Path(app.outdir), sorted(app.env.found_docs))
        if foreign := documentation_twins.foreign_pages(Path(app.outdir)):
            raise ExtensionError(f"{', '.join(foreign[:5])} load something from another host")


def setup(app):
    app.connect("builder-inited", _write_pages)
    app.connect("build-finished", _write_twins)
