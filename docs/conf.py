"""The site: ``make -C docs html`` builds it in ``build/site``."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path

import dps

project = "dps"
author = "dps developers"
project_copyright = "2026, dps developers"
version = release = dps.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_templates"]
templates_path = ["_templates"]
# Inherited docstrings of scikit-learn name terms and sections of its guide. dps has no such roles.
# The path of a checkout may contain a space. The order of the gallery is a class.
suppress_warnings = [
    "config.cache", "ref.ref", "ref.term", "sphinx_gallery.space_in_filename",
]  # fmt: skip

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_mock_imports = [] if find_spec("torch") else ["torch"]
autodoc_typehints = "none"  # numpydoc shows the types of the docstrings
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
toc_object_entries_show_parents = "hide"
highlight_language = "none"  # of literal blocks: commands and outputs
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

#: Within a section of the gallery scripts stand in this order.
EXAMPLES = [
    "quickstart", "pipeline", "compare_modes", "flights_dataframe", "text", "click_logs",
    "larger_than_memory", "search", "ensemble", "pytorch_module", "slurm_job", "resume",
    "shared_value", "read_while_training", "evolution",
]  # fmt: skip


class InOrder:
    """The order of a section of the gallery."""

    def __init__(self, folder: str) -> None:
        pass

    def __call__(self, name: str) -> int:
        """Return the place of a script."""
        return EXAMPLES.index(Path(name).stem)


# The tests run the examples: the gallery shows them.
sphinx_gallery_conf = {
    "subsection_order": [
        f"../examples/{name}" for name in ("data", "models", "clusters", "servers")
    ],
    "within_subsection_order": InOrder,
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["examples"],
    "plot_gallery": False,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": float("inf"),
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"dps {version}"
html_theme_options = {
    "header_links_before_dropdown": 4,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["dps.css"]


def _is_reachable(host: str) -> bool:
    try:
        socket.create_connection((host, 443), timeout=2).close()
    except OSError:
        return False
    return True


#: Other projects' pages, where the network has them: a build must not need it.
_INVENTORIES = {
    "dask": ("docs.dask.org", "https://docs.dask.org/en/stable/"),
    "distributed": ("distributed.dask.org", "https://distributed.dask.org/en/stable/"),
    "numpy": ("numpy.org", "https://numpy.org/doc/stable/"),
    "python": ("docs.python.org", "https://docs.python.org/3/"),
    "sklearn": ("scikit-learn.org", "https://scikit-learn.org/stable/"),
}
intersphinx_mapping = {
    name: (address, None) for name, (host, address) in _INVENTORIES.items() if _is_reachable(host)
}
