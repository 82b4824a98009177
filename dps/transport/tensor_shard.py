"""The Actor that holds a shard of named tensors, and a thread for each caller that is not with it.

What a thread does is native (``_runtime/service.pyx``): it reads a request, whole, does it on the
shard's part, and answers. A caller that dies inside a request has asked for nothing. One that dies
before its answer has been served: what it asked for has been done, once. To a mirror, an Actor of
the same kind, the shard is a caller.
"""

from __future__ import annotations

import contextlib
import weakref
from functools import partial
from typing import Any

from distributed import get_worker

from dps._runtime.service import Service
from dps._runtime.wire import Wire
from dps.server.holding import Holding, HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.callers import RemoteAccess
from dps.transport.remote import Remote
from dps.transport.serving import Served, Services, answering, pickled

__all__ = ["TensorShard"]


class TensorShard(Served):
    """A shard of a server of named tensors, as a Dask Actor.

    Parameters
    ----------
    spec : ServerSpec
    shard : int
    leads : bool
        Otherwise it is the shard's mirror.
    """

    def __init__(self, spec: ServerSpec, shard: int, leads: bool = True) -> None:
        self._holding = holding = Holding(spec, shard, shared=True, leads=leads)
        serve = partial(_serve, holding)  # which does not keep this object
        self._services = Services(get_worker(), holding.token, lambda who: None, serve)
        holding.handler, holding.callers = self._services.name, self._services.callers
        self._close = weakref.finalize(self, _close, self._services, holding)

    def card(self) -> HoldingCard:
        """How callers reach it."""
        return self._holding.card()

    def mirror(self, card: HoldingCard, remote: Remote) -> None:
        """Have a mirror, where nothing has been written yet."""
        held, remote = self._holding, Remote(remote.address, remote.key, get_worker())
        held.mirror(RemoteAccess(held.spec, held.shard, card, remote, held.spec.timeout))

    def promote(self) -> HoldingCard:
        """Lead from now on, see `Holding.promote`."""
        return self._holding.promote()

    def traffic(self) -> dict[str, Any]:
        """What has been done here and who is connected, as far as it takes no time to tell."""
        return {"parts": self._holding.traffic(), "callers": self._services.callers()}

    def version(self) -> int:
        """Nothing: that it answers is what is asked."""
        return 0

    def there(self) -> bool:
        """Whether callers are still served."""
        return self._close.alive

    def services(self, group: None) -> Services:
        """The threads that serve callers."""
        return self._services

    def close(self) -> None:
        """Refuse all callers, and give the memory back."""
        self._close()


def _serve(holding: Holding, who: str, wire: Wire) -> None:
    """Serve a caller until it closes its wire; a thread's whole life."""
    answer = answering(lambda method, args: holding.call(method, *args))
    entry = holding.enter()
    try:
        with contextlib.suppress(OSError):  # the caller has gone
            Service(wire, answer, parts=holding.parts, entry=entry).run(pickled)
    finally:
        holding.leave(entry)


def _close(services: Services, holding: Holding) -> None:
    holding.close()
    services.close()
