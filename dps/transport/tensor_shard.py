"""The Actor that holds a shard of named tensors, and a thread for each caller that is not with it.

What a thread does is native (``_runtime/service.pyx``): it reads a request, whole, does it on the
shard's part, and answers. A caller that dies inside a request has asked for nothing. One that dies
before its answer has been served: what it asked for has been done, once.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from functools import partial
from typing import Any

from distributed import get_worker

from dps._runtime.service import Service
from dps._runtime.wire import Wire
from dps.server.holding import Holding, HoldingCard
from dps.server.tensors import ServerSpec
from dps.transport.serving import Served, Services, answering, pickled

__all__ = ["TensorShard"]


class TensorShard(Served):
    """A shard of a server of named tensors, as a Dask Actor.

    Parameters
    ----------
    spec : ServerSpec
    shard : int
    """

    def __init__(self, spec: ServerSpec, shard: int) -> None:
        self._holding = Holding(spec, shard, shared=True)
        serve = partial(_serve, self._holding)  # which does not keep this object
        self._services = Services(get_worker(), self._holding.token, lambda who: None, serve)
        self._close = weakref.finalize(self, _close, self._services, self._holding)

    def card(self) -> HoldingCard:
        """How callers reach it."""
        return replace(self._holding.card(), handler=self._services.name)

    def extend(self, spec: ServerSpec) -> ServerSpec:
        """Hold further tensors, see `Holding.extend`."""
        return self._holding.extend(spec)

    def status(self) -> dict[str, Any]:
        """What has been done here, and who is connected."""
        return {**self._holding.counts(), "callers": self._services.callers()}

    def traffic(self) -> dict[str, Any]:
        """The same, as far as it takes no time to tell."""
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
    with contextlib.suppress(OSError):  # the caller has gone
        Service(wire, answer, parts=holding.parts).run(pickled)


def _close(services: Services, holding: Holding) -> None:
    holding.close()
    services.close()
