"""A panel of HTML: the parameter servers of the cluster, a row each."""

from __future__ import annotations

from html import escape

from dask.utils import format_bytes

from dps.monitor.page.canvas import div, write
from dps.monitor.page.palette import Palette
from dps.monitor.page.view import View
from dps.monitor.scheduler.servers import Server
from dps.monitor.words import count, host, plural

_CSS = """
:host { font: 13px/1.5 Helvetica, Arial, sans-serif; color: var(--dps-text); width: 100%;
  overflow: auto; }
.empty { color: var(--dps-faint); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 400; color: var(--dps-faint); padding: 2px 8px;
  white-space: nowrap; }
td { text-align: right; padding: 5px 8px; border-top: 1px solid var(--dps-line);
  vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.words { text-align: left; }
small { display: block; color: var(--dps-faint); }
.lost { color: var(--dps-bad); }
"""
#: Tensors and workers that are named.
_NAMED = 6


class ServersPanel:
    """A row a server: what it holds, who uses it how much, and where it is.

    palette: its colours come from the page's style sheet.
    """

    def __init__(self, palette: Palette) -> None:
        self.root = div(_CSS, "servers")

    def update(self, view: View) -> None:
        """Write the table."""
        if not view.servers:
            write(self.root, '<div class="empty">There is no dps.ParameterServer now.</div>')
            return
        rows = "".join(map(_row, view.servers))
        write(
            self.root,
            '<table><tr><th>server</th><th class="words">tensors</th><th>memory</th>'
            "<th>callers</th><th>pulls/s</th><th>pushes/s</th><th>writes/s</th>"
            f'<th class="words">shards</th></tr>{rows}</table>',
        )


def _row(server: Server) -> str:
    name = "without a name" if server.name is None else server.name
    lost = ""
    if server.lost:
        shards = plural(len(server.lost), "shard")
        lost = f'<small class="lost">{shards} lost: a worker has died</small>'
    return (
        f"<tr><td>{escape(name)}{lost}</td>"
        f'<td class="words">{escape(_listed(server.tensors))}</td>'
        f"<td>{format_bytes(server.bytes)}</td><td>{server.callers:,}</td>"
        f"<td>{count(server.rate('reads'))}</td><td>{count(server.rate('pushes'))}</td>"
        f"<td>{count(server.rate('writes'))}</td>"
        f'<td class="words">{server.n_shards:,}<small>{_workers(server)}</small></td></tr>'
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _workers(server: Server) -> str:
    addresses = {shard["worker"]: at in server.lost for at, shard in server.shards.items()}
    shown = [
        f'<span class="lost">{escape(host(worker))}, lost</span>' if gone else escape(host(worker))
        for worker, gone in list(addresses.items())[:_NAMED]
    ]
    more = len(addresses) - len(shown)
    return "<br>".join(shown) + (f"<br>and {more:,} more" if more else "")
