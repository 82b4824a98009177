"""The page ``/dps``, and a page for each plot, as bokeh applications on Dask's dashboard.

It combines panels and the template, and updates them from the store of the scheduler's plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from bokeh.models import CheckboxButtonGroup, CustomJS, InlineStyleSheet
from jinja2 import ChoiceLoader, Environment, FileSystemLoader

from dps.monitor.page.bars import Times
from dps.monitor.page.curves import Losses, Rates
from dps.monitor.page.heat import Staleness
from dps.monitor.page.palette import DARK, LIGHT, Palette
from dps.monitor.page.panels import EventLog, Headline, ServersPanel, Shards
from dps.monitor.page.view import Panel, view_of
from dps.monitor.scheduler.store import FitStore

#: Milliseconds between two looks for news.
_TICK_MILLISECONDS = 250

PANELS: dict[str, Callable[[Palette], Panel]] = {
    "headline": Headline,
    "loss": Losses,
    "rates": Rates,
    "times": Times,
    "staleness": Staleness,
    "shards": Shards,
    "events": EventLog,
    "servers": ServersPanel,
}

#: Names of the pages of single plots, in Dask's menu and in JupyterLab.
PLOTS = {
    "/individual-dps-progress": "headline",
    "/individual-dps-loss": "loss",
    "/individual-dps-rows-per-second": "rates",
    "/individual-dps-time": "times",
    "/individual-dps-staleness": "staleness",
    "/individual-dps-shards": "shards",
    "/individual-dps-events": "events",
    "/individual-dps-servers": "servers",
}

_CHIPS = """
:host { width: 100%; }
.bk-btn-group { display: flex !important; flex-wrap: wrap; gap: 6px; }
.bk-btn { border-radius: 99px !important; border: 1px solid var(--dps-line); font-size: 12px;
  padding: 4px 12px; background: var(--dps-card); color: var(--dps-faint); margin: 0 !important;
  flex: 0 0 auto !important; width: auto !important; }
.bk-btn:hover { color: var(--dps-text); border-color: var(--dps-faint);
  background: var(--dps-card); }
.bk-btn.bk-active, .bk-btn.bk-active:hover { background: var(--dps-accent); color: var(--dps-card);
  border-color: var(--dps-accent); box-shadow: none; }
"""


def applications(store_of: Callable[[Any], FitStore]) -> dict[str, Callable[..., None]]:
    """Return functions that make the documents, by path, for Dask's dashboard.

    `store_of` returns a scheduler's store of fits.
    """
    singles = {path: partial(_single, name, store_of) for path, name in PLOTS.items()}
    return {"/dps": partial(_page, store_of), **singles}


def enter(variables: dict[str, Any]) -> None:
    """Add the page and its plots to the navigation of Dask's pages.

    variables: those of Dask's templates; all templates share its lists.
    """
    if "dps" not in variables["pages"]:
        variables["pages"].append("dps")
    known = {plot["url"] for plot in variables["plots"]}
    variables["plots"] += [
        {"url": url, "name": "dps: " + url.removeprefix("individual-dps-").replace("-", " ")}
        for url in _alone().values()
        if url not in known
    ]


def _page(
    store_of: Callable[[Any], FitStore], scheduler: Any, extra: Mapping[str, object], doc: Any
) -> None:
    """The whole page."""
    from distributed.dashboard.components import scheduler as dask_pages

    folders = [Path(__file__).parent, Path(dask_pages.__file__).parents[2] / "http" / "templates"]
    environment = Environment(loader=ChoiceLoader([FileSystemLoader(f) for f in folders]))
    store = store_of(scheduler)
    palette, chosen = _asked(doc)
    choice = Choice(store, chosen)
    panels = {name: panel(palette) for name, panel in PANELS.items()}
    doc.title = "Dask: dps"
    doc.template = environment.get_template("page.html")
    doc.template_variables.update(extra, palette=palette, plots_of=_alone())
    for root in (choice.root, *(panel.root for panel in panels.values())):
        doc.add_root(root)
    _follow(doc, store, list(panels.values()), choice)


def _single(
    name: str,
    store_of: Callable[[Any], FitStore],
    scheduler: Any,
    extra: Mapping[str, object],
    doc: Any,
) -> None:
    """One plot, as notebooks and JupyterLab embed it."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent))
    palette, chosen = _asked(doc)
    panel = PANELS[name](palette)
    doc.title = f"dps: {name}"
    doc.template = environment.get_template("single.html")
    doc.template_variables.update(palette=palette)
    doc.add_root(panel.root)
    store = store_of(scheduler)
    _follow(doc, store, [panel], Choice(store, chosen))


def _alone() -> dict[str, str]:
    return {name: path.strip("/") for path, name in PLOTS.items()}


def _asked(doc: Any) -> tuple[Palette, list[str]]:
    """Return the look and the fits that the address requests."""
    context = doc.session_context
    arguments = {} if context is None else context.request.arguments
    theme = arguments.get("theme", [b""])[-1].decode()
    fits = [value.decode() for value in arguments.get("fit", [])]
    return DARK if theme == "dark" else LIGHT, fits


#: Stores the chosen fits in the address, in the order of the clicks.
_REMEMBER = """
const address = new URL(location.href)
const chosen = cb_obj.active.map((at) => cb_obj.tags[at])
const before = address.searchParams.getAll("fit")
const kept = before.filter((fit) => chosen.includes(fit))
const fits = [...kept, ...chosen.filter((fit) => !kept.includes(fit))]
if (fits.join() != before.join()) {
  address.searchParams.delete("fit")
  fits.forEach((fit) => address.searchParams.append("fit", fit))
  history.replaceState(null, "", address)
}
"""

#: Signs before the names of running and failed fits.
_SIGNS = {"running": "● ", "failed": "✕ "}


class Choice:
    """Buttons with the names of fits, which choose the fits to show.

    chosen: ids of the fits that are chosen at first; without any the page shows running fits.
    """

    def __init__(self, store: FitStore, chosen: list[str]) -> None:
        self._store = store
        self._ids: list[str] = []
        self.chosen = chosen
        self.root = CheckboxButtonGroup(
            labels=[], active=[], name="choice", stylesheets=[InlineStyleSheet(css=_CHIPS)]
        )
        self.root.on_change("active", self._click)
        self.root.js_on_change("active", CustomJS(code=_REMEMBER))

    def _click(self, name: str, old: list[int], new: list[int]) -> None:
        clicked = [self._ids[at] for at in new if at < len(self._ids)]
        # In the order of the clicks: the last one is shown in full.
        kept = [id for id in self.chosen if id in clicked]
        self.chosen = kept + [id for id in clicked if id not in kept]

    def update(self) -> None:
        """Show the known fits."""
        fits = self._store.fits
        self._ids = [fit.id for fit in fits]
        self.chosen = [id for id in self.chosen if id in self._ids]
        labels = [f"{_SIGNS.get(fit.outcome, '')}{fit.name}" for fit in fits]
        if self.root.labels != labels:
            active = [self._ids.index(id) for id in self.chosen]
            self.root.update(tags=self._ids, labels=labels, active=active)


def _follow(doc: Any, store: FitStore, panels: list[Panel], choice: Choice) -> None:
    """Show the store's contents, now and after every change."""
    shown: list[object] = []

    def update() -> None:
        now = time()
        chosen = list(choice.chosen)
        # A fit falls silent without an event.
        silent = [(fit.id, int(now)) for fit in store.fits if fit.silent(now)]
        servers = len(store.servers.shown(now))  # lost servers disappear without an event, too
        state: list[object] = [store.revision, chosen, silent, servers]
        if state == shown:
            return
        shown[:] = state
        choice.update()
        view = view_of(store, chosen, now)
        for panel in panels:
            panel.update(view)

    update()
    doc.add_periodic_callback(update, _TICK_MILLISECONDS)
