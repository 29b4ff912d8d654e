"""How the documentation is built: `make docs`."""

from importlib.metadata import version as installed

project = "sightline"
author = "The sightline authors"
copyright = author
version = release = installed("sightline")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
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
html_title = f"sightline {release}"
