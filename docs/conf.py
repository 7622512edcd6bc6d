"""The documentation's site: Sphinx with the theme furo. `tox -e docs` builds it.

The pages are plain Markdown, so that they also read well on a code host. The site's tables of
contents are made here, from the lists of links on the index pages.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from generate import GENERATED, write_reference  # noqa: E402

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
myst_heading_anchors = 3
exclude_patterns = ["_build"]
smartquotes = False  # -- stays two hyphens
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "code"  # `name` in a docstring is code
html_theme = "furo"
html_title = "retrieval-bench"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path: list[str] = []

write_reference(HERE / "reference")


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Append a table of contents to index page ``name``: the links that begin a list item."""
    if not re.search(r"(^|/)index$", name):
        return
    pages = re.findall(r"^- \[[^\]]*\]\(([^)#:]+\.md)\)", source[0], re.MULTILINE)
    if name == "reference/index":
        pages += [f"{page}.md" for page in GENERATED]
        for page in GENERATED:
            heading = (HERE / f"reference/{page}.md").read_text(encoding="utf-8").split("\n")[0]
            linked = f"#{heading}\n\n**[The full page]({page}.md)**\n"
            source[0] = source[0].replace(f"#{heading}\n", linked)
    contents = "\n".join(page.removesuffix(".md") for page in pages)
    source[0] += f"\n```{{toctree}}\n:hidden:\n:maxdepth: 2\n\n{contents}\n```\n"


def setup(app: Sphinx) -> None:
    """Register ``add_contents``, which Sphinx calls for each page that it reads."""
    app.connect("source-read", add_contents)
