"""How the documentation is built: `make docs`."""

from importlib.metadata import version as installed

project = "sightline"
author = "The sightline authors"
copyright = author
version = release = installed("sightline")

extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinxcontrib.bibtex"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
bibtex_bibfiles = ["references.bib"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"sightline {release}"
