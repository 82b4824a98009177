"""The choice of access to each shard, by trying."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dps.errors import WindowError
from dps.server.group.session import Session
from dps.server.shard import WindowCard
from dps.transport.base import Link
from dps.transport.mapped import MappedLink, map_window
from dps.transport.remote import Remote

#: Shards that a rank connects to at a time, with a thread for each.
_AT_ONCE = 32


def connect(
    session: Session,
    rank: int,
    fence: int,
    *,
    access: str,
    alive: Callable[[], None] | None = None,
) -> list[Link]:
    """Return links of a rank to every shard, on which the rank is claimed; close them.

    fence: number of the attempt, not zero.
    access: {"auto", "mapped", "stream"}, map windows if possible, require it, or do not try.
    alive: called once a second while waiting; raises to give up.
    Raises FencedError: another attempt owns the rank.
    Raises WindowError: `access` is ``"mapped"`` and a window cannot be mapped from here, or it is
        ``"stream"`` and there is no Actor.
    """
    links: list[Link] = []
    try:
        for handle in session.shards:
            remote = handle.endpoint if isinstance(handle.endpoint, Remote) else None
            if remote is not None:  # found here, since other threads have no task
                remote = replace(remote, client=remote.node)
            server = session.server
            link = _link(
                handle.card, remote, rank, fence, access, server.timeout, alive, server.silence
            )  # fmt: skip
            links.append(link)
        links[0].claim()  # the first shard decides which of two attempts gets the rank
        if len(links) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(links) - 1), "dps-connect") as pool:
                list(pool.map(lambda link: link.claim(), links[1:]))
    except BaseException:
        for link in links:
            link.close()
        raise
    return links


def _link(
    card: WindowCard,
    remote: Remote | None,
    rank: int,
    fence: int,
    access: str,
    timeout: float,
    alive: Callable[[], None] | None,
    silence: float,
) -> Link:
    window = None if access == "stream" else map_window(card)
    if window is not None:
        return MappedLink(window, rank, fence, timeout, alive)
    if access == "mapped" or remote is None:
        where = card.window.path or "private memory"
        raise WindowError(
            f"access={access!r} is not possible here: the window of shard {card.spec.shard} "
            f"({where}) cannot be reached that way; use access='auto'",
            rank=rank,
        )
    from dps.transport.far import FarLink

    return FarLink(card, remote, rank, fence, timeout, alive, silence)
