"""The documentation's site: Sphinx with the theme furo. `tox -e docs` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from generate import write_reference  # noqa: E402

from bench import __version__  # noqa: E402

project = "retrieval-bench"
author = "the authors of retrieval-bench"
copyright = author
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
smartquotes = False  # -- stays two hyphens
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "code"  # `name` in a docstring is code
html_theme = "furo"
html_title = "retrieval-bench"
html_static_path: list[str] = []
templates_path: list[str] = []
# Links to places that cannot be reached from here are not followed by `-b linkcheck`.
linkcheck_ignore = [r"https?://.*"]

write_reference(HERE / "reference")
