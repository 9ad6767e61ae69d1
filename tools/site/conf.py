"""Settings of Sphinx for `make site`, which runs it in a folder that tools/site/build.py has filled."""

from __future__ import annotations

import pccl

project = "pccl"
version = release = pccl.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_title = f"pccl {release}"
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"
nitpick_ignore_regex = [("py:.*", r".*")]
"""Types in signatures are those of other packages, whose sites are not at hand when this one is built."""
suppress_warnings = ["ref.python"]
"""Snapshots is in two modules, and is the same in both."""
