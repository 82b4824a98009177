"""The parameter server for users: named tensors and tables on any cluster.

This module creates, finds, monitors, saves and closes servers. Reads and writes are in
``tensors.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from dps._warned import warn
from dps.cluster.options import Options
from dps.errors import ServerLostError
from dps.optimizers import Optimizer
from dps.optimizers.names import get_optimizer
from dps.parameter_server.arguments import (
    Initial,
    check_mirror,
    check_name,
    check_shards,
    initial_values,
    learning_rate_of,
    specs_of,
    without_rate,
)
from dps.parameter_server.client import local as places
from dps.parameter_server.reports import report
from dps.parameter_server.saved import read_server, write_server
from dps.parameter_server.shard.layout import Rule, ServerSpec
from dps.parameter_server.shard.mirroring import PartSnapshot
from dps.parameter_server.tensors import NamedTensors
from dps.parameter_server.whole import whole_of

if TYPE_CHECKING:
    from dps._typing import Auto, ClientLike, PathLike, Placing, StepsLike
    from dps.parameter_server.client.local import Place


class _Where(NamedTuple):
    """The name of a server, and where it runs."""

    name: str | None
    n_shards: int | Auto
    placement: Rule | Placing
    workers: Sequence[str] | Mapping[str, float] | None
    mirror: bool | Auto
    client: ClientLike | None
    timeout: float


class ParameterServer(NamedTensors):
    """Named tensors and tables on shards, for all clients and tasks of a cluster.

    With a Dask client the shards are Actors on its workers. Without one they are in this process,
    and threads share them. A server with a name lives until `close`, even if the client that made
    it leaves. A server without a name ends with this object.

    A shard applies writes to a part of a tensor one after another, so counts are exact, and a
    caller that dies leaves no partial write. A read sees a part between two writes. A call for
    several shards acts on each of them separately.

    Handles can be pickled and sent to tasks; `connect` makes one from a name.

    Parameters
    ----------
    tensors : mapping of str to array or EmbeddingTable, optional
        Initial values, float32 or float64; integers and lists become float64. `create` makes more
        later, and an estimator with ``server=`` makes the tensors of its model.
    optimizer : str or Optimizer, default="sgd"
        Applies pushed gradients.
    learning_rate : float, optional
        The default is that of the optimizer.
    name : str, optional
        Name for `connect`.
    n_shards : int or "auto", default="auto"
        "auto" is one for each of `workers`. Without `workers` it is the fastest number for the
        bytes of `tensors`, at most one for each host; without tensors one for each host.
    placement : {"contiguous", "balanced", "round_robin"} or callable, default="contiguous"
        "contiguous" cuts each tensor into equal runs of rows, one for each shard. "balanced" places
        whole tensors, the largest first, on the shard with the least bytes; "round_robin" places
        them in turn. A function ``placement(name, shape)`` returns the shard of each tensor. Rows
        of tables go to all shards by a hash of the id.
    workers : sequence of str or mapping of str to float, optional
        Addresses of workers for the shards, or Dask resources that a worker must have:
        ``workers={"server": 1}``.
    mirror : bool or "auto", default="auto"
        If True, each shard has a mirror on another host, or on another worker if there is one host.
        Both have each write before the call returns, and the mirror takes over if the shard's
        worker dies. Memory doubles, and a write takes another round trip. "auto" is True for two
        hosts or more.
    client : distributed.Client, cluster or address of a scheduler, optional
        The default is the active client; in a task none.
    timeout : float, default=60
        Seconds without an answer after which a shard counts as lost.

    Attributes
    ----------
    name : str or None
    tensors : dict of str to tuple of int
        Shapes of the tensors that this object knows; it learns of others when it is asked for them.
        The shape of a table is its capacity and its `dim`.

    Examples
    --------
    >>> import dps, numpy as np
    >>> server = dps.ParameterServer(
    ...     {"w": np.zeros(4), "emb": dps.EmbeddingTable(dim=2)}, optimizer="sgd", learning_rate=0.5
    ... )
    >>> server.push("w", np.array([8.0, 0, 0, 4]), rows=4)
    >>> server.pull("w")
    array([-1. ,  0. ,  0. , -0.5])
    >>> server.add("emb", np.ones((2, 2)), [7, 7])
    >>> server.pull("emb", [7, 8])
    array([[2., 2.],
           [0., 0.]], dtype=float32)
    >>> server.versions
    {'w': 1, 'emb': 1}
    >>> server.close()
    """

    def __init__(  # noqa: PLR0913 - public options
        self,
        tensors: Mapping[str, object] = MappingProxyType({}),
        *,
        optimizer: StepsLike = "sgd",
        learning_rate: float | None = None,
        name: str | None = None,
        n_shards: int | Auto = "auto",
        placement: Rule | Placing = "contiguous",
        workers: Sequence[str] | Mapping[str, float] | None = None,
        mirror: bool | Auto = "auto",
        client: ClientLike | None = None,
        timeout: float = 60.0,
    ) -> None:
        given = initial_values(tensors)
        where = _Where(name, n_shards, placement, workers, mirror, client, timeout)
        self._make(given, whole_of(given), get_optimizer(optimizer), learning_rate, where)

    def _make(
        self,
        given: Initial,
        initial: Mapping[str, PartSnapshot],
        optimizer: Optimizer,
        learning_rate: float | None,
        where: _Where,
    ) -> None:
        check_name(where.name)
        wanted = check_shards(where.n_shards)
        check_mirror(where.mirror)
        rate = learning_rate_of(optimizer, learning_rate)
        optimizer = without_rate(optimizer)
        nbytes = sum(value.nbytes for value in given.values())
        with ExitStack() as connected:
            found = connected.enter_context(places.connection(where.client, in_task=False))
            workers, timeout = where.workers, where.timeout
            homes = places.shards_for(found, wanted, nbytes, workers, where.mirror, timeout)
            tensors = specs_of(given, len(homes), where.placement)
            spec = ServerSpec(
                secrets.token_hex(8), where.name, (), optimizer, rate, len(homes), timeout,
                float(Options.now().silence),
            )  # fmt: skip
            self._begin(places.make(found, spec, homes, workers is not None, timeout))
            try:
                self._requests.create(tensors, initial)
                if where.name is not None:
                    self._requests.place.publish()
            except BaseException:
                self.disconnect()
                self._requests.place.abandon()
                raise
            self._connected = connected.pop_all()

    @classmethod
    def connect(cls, name: str, *, client: ClientLike | None = None) -> Self:
        """Return the server with a name, from any client or task of its cluster.

        Parameters
        ----------
        name : str
        client : distributed.Client, cluster or address of a scheduler, optional
            The default is the active client; in a task that of the worker.

        Raises
        ------
        LookupError
            There is no such server; the message lists the others.
        ServerLostError
            A shard of it is lost.
        """
        with ExitStack() as connected:
            made = cls._of(places.find(connected.enter_context(places.connection(client)), name))
            made._connected = connected.pop_all()
        return made

    @classmethod
    def _of(cls, place: Place) -> Self:
        made = cls.__new__(cls)
        made._begin(place)
        return made

    def _begin(self, place: Place) -> None:
        super().__init__(place)
        self._ended = False
        self._connected = ExitStack()  # holds a client that was connected for it
        self._looked: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        return type(self)._of, (self._requests.place,)

    @property
    def name(self) -> str | None:
        """The name by which others connect."""
        return self._requests.spec.name

    def __repr__(self) -> str:
        return f"ParameterServer(name={self.name!r}, tensors={self.tensors})"

    def create(
        self, tensors: Mapping[str, object], *, placement: Rule | Placing = "contiguous"
    ) -> None:
        """Create more tensors, which all users of the server see at once.

        Parameters
        ----------
        tensors : mapping of str to array or EmbeddingTable
            Initial values.
        placement : {"contiguous", "balanced", "round_robin"} or callable, default="contiguous"
            As for `ParameterServer`, of these tensors.

        Raises
        ------
        ValueError, TypeError
            There is one of that name; or an argument is not as it should be.
        ServerLostError
            A shard is lost, or the server has been closed.

        Notes
        -----
        A name is created once, and others see it with its initial values. After an error all of the
        tensors exist or, if the shards can be reached, none.

        Examples
        --------
        >>> import dps, numpy as np
        >>> with dps.ParameterServer() as server:
        ...     server.create({"w": np.ones(2)})
        ...     server.pull("w")
        array([1., 1.])
        """
        given = initial_values(tensors)
        made = specs_of(given, self._requests.spec.n_shards, placement)
        self._requests.create(made, whole_of(given))

    def put_note(self, name: str, note: bytes) -> None:
        """Store bytes beside the tensors, such as the description of a model.

        Parameters
        ----------
        name : str
            An earlier note of this name is replaced.
        note : bytes
        """
        self._requests.reach(0).call("put_note", name, note)

    def note(self, name: str) -> bytes | None:
        """Return the bytes stored by a name; None without any."""
        return self._requests.reach(0).call("note", name)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and callers of the server.

        Returns
        -------
        dict
            ``name``, ``seconds`` since it was made, ``bytes``; ``tensors``, of each its ``shape``,
            ``dtype``, ``writes``, ``pushes``, ``reads``, of a table its ``rows``; the rates
            ``writes_per_second`` and ``reads_per_second``, since the last call of this object, at
            first since it was made; ``shards``, of each its ``worker``, the worker of its
            ``mirror`` or None, its ``callers``, and ``lost``: None, or the lost parts and the
            reason.

        Raises
        ------
        ServerLostError
            All shards are lost, or the server has been closed.
        """
        status = self._requests.status()
        self._looked = report(self._requests.spec, status, self._looked)
        return self._looked

    @staticmethod
    def list(*, client: ClientLike | None = None) -> list[dict[str, Any]]:
        """Return all named servers, as in `stats`; for a lost one the ``error``.

        Parameters
        ----------
        client : distributed.Client, cluster or address of a scheduler, optional
            Client of the cluster. Without one, servers of this process are listed.
        """
        found = []
        with places.connection(client) as chosen:
            for name in places.names(chosen):
                try:
                    place = places.find(chosen, name)
                    place.extend(place.spec)
                    found.append(report(place.spec, place.status(), None))
                except LookupError:  # closed meanwhile
                    continue
                except ServerLostError as error:
                    found.append({"name": name, "error": str(error)})
        return found

    def save(self, path: PathLike, *, lost: Literal["error", "skip"] = "error") -> None:
        """Write tensors, tables, optimizer state and notes to a directory, while others write on.

        Each part is saved in a state between two writes. Files have the layout of saved estimators,
        for any number of shards.

        Parameters
        ----------
        path : str or path
            Any path of fsspec.
        lost : {"error", "skip"}, default="error"
            Treatment of lost shards. "skip" saves the others, with zeros for lost rows of arrays
            and without lost rows of tables; a warning lists them.

        Raises
        ------
        ServerLostError
            A shard is lost, or with "skip" all of them are.
        NonFiniteError
            A write has overflowed, and its elements have not been assigned since. Nothing is
            written.
        """
        if lost not in ("error", "skip"):
            raise ValueError(f"lost must be 'error' or 'skip', got {lost!r}")
        whole, notes, gone = self._requests.whole(lost == "skip")
        write_server(path, self._requests.spec, whole, notes)
        if gone:
            said = "; ".join(str(error) for error in gone.values())
            warn(
                f"{path} lacks lost parts: {said}. Zeros stand for rows of arrays, and rows of "
                f"tables are left out{', and so are notes' if 0 in gone else ''}",
                UserWarning,
                stacklevel=2,
            )

    @classmethod
    def load(  # noqa: PLR0913 - public options
        cls,
        path: PathLike,
        *,
        optimizer: StepsLike | None = None,
        learning_rate: float | None = None,
        name: str | None = None,
        n_shards: int | Auto = "auto",
        placement: Rule | Placing = "contiguous",
        workers: Sequence[str] | Mapping[str, float] | None = None,
        mirror: bool | Auto = "auto",
        client: ClientLike | None = None,
        timeout: float = 60.0,
    ) -> Self:
        """Create a server with the saved contents of another one, on any number of shards.

        Parameters
        ----------
        path : str or path
        optimizer : str or Optimizer, optional
            The default is the saved one. Its state is used if the kind is the same.
        learning_rate : float, optional
            The default is the saved one.
        name, n_shards, placement, workers, mirror, client, timeout
            As for `ParameterServer`. A name is not saved.

        Raises
        ------
        FileNotFoundError, ValueError
            The path holds no server, or it is damaged.
        """
        saved = read_server(path)
        chosen = saved.optimizer if optimizer is None else get_optimizer(optimizer)
        whole = saved.whole if type(chosen) is type(saved.optimizer) else saved.without_state
        asked = learning_rate is not None or chosen.learning_rate != "auto"
        rate = learning_rate if asked else saved.rate
        made = cls.__new__(cls)
        where = _Where(name, n_shards, placement, workers, mirror, client, timeout)
        made._make(saved.tensors, whole, chosen, rate, where)
        for key, note in saved.notes.items():
            made.put_note(key, note)
        return made

    def disconnect(self) -> None:
        """Free what this object holds; the server lives on.

        A client that was connected for it, since ``client=`` was an address, is closed.
        """
        self._finish()
        self._requests.leave()
        if self.name is not None:  # without a name it ends with its client
            self._connected.close()

    def close(self) -> None:
        """End the server for all its users; their calls then raise an error."""
        self._finish()
        self._requests.closed = True
        self._requests.leave()
        if not self._ended:
            self._requests.place.close()
            self._ended = True
        self._connected.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
