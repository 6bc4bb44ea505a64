"""How the documentation site is built: `sphinx-build -W --keep-going -b html docs build/docs`.

Sphinx, because the API reference comes from docstrings and every name in the pages is checked.
Material for MkDocs, the other usual choice, is in maintenance mode
(https://github.com/squidfunk/mkdocs-material/issues/8523).
"""
# ruff: noqa: INP001  # Sphinx runs this file by its path

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "hastetrio"
author = "The hastetrio authors"
project_copyright = author
release = version_of("hastetrio")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "_ext.from_the_code",
    "_ext.links_out",
    "_ext.plain_attributes",
]
exclude_patterns = ["_ext"]
html_theme = "furo"
html_title = f"hastetrio {release}"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["colon_fence", "deflist"]
# The pages are read on code hosts too, which give each heading such an anchor.
myst_heading_anchors = 4
# Docstrings have names in single backticks. This role links those it finds, and shows the others
# as code.
default_role = "py:obj"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "undoc-members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
