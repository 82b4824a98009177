"""The parameter server, as users have it: named tensors and tables, from wherever they are.

It knows which part has which rows, and says what went wrong in the words of the call. It must not
know how a part is reached, or how rows are written there.
"""

from __future__ import annotations

import builtins
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dps._runtime.message import Ending, Op
from dps.errors import NonFiniteError, ServerLostError, TableFullError
from dps.optimizers import Optimizer, get_optimizer
from dps.parameter_server import places
from dps.parameter_server.arguments import (
    Initial,
    check_mirror,
    check_name,
    check_shards,
    extended,
    initial_values,
    learning_rate_of,
    spec_of,
)
from dps.parameter_server.choosing import Piece, choose, ids_of, summed, values_for
from dps.parameter_server.handles import Handle
from dps.parameter_server.reports import report
from dps.parameter_server.saved import read_server, write_server
from dps.parameter_server.whole import restore, unknown_part, whole_of
from dps.server.holding import Done, Holding
from dps.server.mirroring import Taken
from dps.server.tensors import Rule, ServerSpec, TensorSpec

if TYPE_CHECKING:
    from dps.parameter_server.places import Place
    from dps.transport.callers import RemoteAccess, Sent

    Way = Holding | RemoteAccess
    Answer = Done | Sent

__all__ = ["ParameterServer"]

#: Seconds between two looks of a caller that waits for writes, at first and at last.
_FIRST_LOOK, _LOOK = 0.0005, 0.02


class ParameterServer:
    """Named tensors and tables on shards, that anybody on the cluster reads and writes.

    With a Dask client the shards are Actors on its workers, without one they are in this process,
    where threads share them. A server with a name lives until `close`, also when the client that
    made it leaves; one without ends with that client.

    A write is done by the process of the shard, one after another on each part of a tensor, so
    counts are exact, and a caller that dies in the middle leaves nothing half done. A read of a
    part is a state between two writes. What a call means for several shards is done on each by
    itself.

    Handles pickle: tasks that are given one use it, and `connect` makes one from a name.

    Parameters
    ----------
    tensors : mapping of str to array or Table, optional
        Initial values, float32 or float64; integers and lists become float64. More can be made
        later, see `create`; an estimator with ``server=`` makes those of its model.
    optimizer : str or Optimizer, default="sgd"
        Applies what is pushed.
    learning_rate : float, optional
        The optimizer's own by default.
    name : str, optional
        By which others connect.
    n_shards : int or "auto", default="auto"
        One a host, or one for each of `workers`.
    placement : {"contiguous", "balanced", "round_robin"} or callable, default="contiguous"
        Each tensor cut into equal runs of rows, one a shard; whole tensors, the largest first to
        the shard that has least; whole tensors in turn; or ``placement(name, shape)``, the shard
        of each. The rows of tables are on all shards, by a hash of the id.
    workers : sequence of str or mapping of str to float, optional
        Addresses of workers that have the shards; or the resources, in Dask's sense, that workers
        need to have to be given one: ``workers={"server": 1}``.
    mirror : bool or "auto", default="auto"
        Whether each shard has a mirror on another host, or on another worker where there is one
        host: what has been written is there before the call returns, and goes on from there if the
        shard's worker dies. A write takes another trip, and memory doubles. "auto" has mirrors
        where there are two hosts or more.
    client : distributed.Client, optional
        The active one by default; inside of a task none, unless it is given.
    timeout : float, default=60
        Seconds without an answer that count as a loss.

    Attributes
    ----------
    name : str or None
    tensors : dict of str to tuple of int
        The shape of each tensor that this object has heard of, as it has of those that it is asked
        for; of a table the rows that there is room for, and its `dim`.

    Examples
    --------
    >>> import dps, numpy as np
    >>> server = dps.ParameterServer(
    ...     {"w": np.zeros(4), "emb": dps.Table(dim=2)}, optimizer="sgd", learning_rate=0.5
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

    def __init__(
        self,
        tensors: Mapping[str, Any] = MappingProxyType({}),
        *,
        optimizer: str | Optimizer = "sgd",
        learning_rate: float | None = None,
        name: str | None = None,
        n_shards: int | str = "auto",
        placement: str | Rule = "contiguous",
        workers: Sequence[str] | Mapping[str, float] | None = None,
        mirror: bool | str = "auto",
        client: Any = None,
        timeout: float = 60.0,
    ) -> None:
        given = initial_values(tensors)
        self._make(
            given, whole_of(given), get_optimizer(optimizer), learning_rate, name, n_shards,
            placement, workers, mirror, client, timeout,
        )  # fmt: skip

    def _make(
        self,
        given: Initial,
        initial: Mapping[str, Taken],
        optimizer: Optimizer,
        learning_rate: float | None,
        name: str | None,
        n_shards: int | str,
        placement: str | Rule,
        workers: Sequence[str] | Mapping[str, float] | None,
        mirror: bool | str,
        client: Any,
        timeout: float,
    ) -> None:
        check_name(name)
        number = check_shards(n_shards)
        check_mirror(mirror)
        rate = learning_rate_of(optimizer, learning_rate)
        found = places.client_for(client)
        homes = places.shards_for(found, number, workers, mirror, timeout)
        spec = spec_of(given, optimizer, rate, name, len(homes), placement, timeout)
        self._begin(places.make(found, spec, homes, workers is not None, timeout))
        try:
            for key, whole in initial.items():
                restore(self._tensors[key], whole, self._call)
            if name is not None:
                self._place.publish()
        except BaseException:
            self.disconnect()
            self._place.abandon()
            raise

    @classmethod
    def connect(cls, name: str, *, client: Any = None) -> Self:
        """The server of that name, from any client or task of its cluster.

        Parameters
        ----------
        name : str
        client : distributed.Client, optional
            The active one by default; inside of a task that of the worker.

        Raises
        ------
        LookupError
            There is none; those that there are are named.
        ServerLostError
            A shard of it is lost.
        """
        return cls._of(places.find(places.known(client), name))

    @classmethod
    def _of(cls, place: Place) -> Self:
        made = cls.__new__(cls)
        made._begin(place)
        return made

    def _begin(self, place: Place) -> None:
        self._place = place
        self._accesses: dict[int, Way] = {}
        self._later: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = self._ended = False
        self._looked: dict[str, Any] | None = None
        self._know()

    def _know(self) -> None:
        """Take over which tensors the place knows of."""
        self._spec = self._place.spec
        self._numbers = {
            (tensor.name, part): (shard, local)
            for shard in range(self._spec.n_shards)
            for local, (tensor, part) in enumerate(self._spec.held(shard))
        }
        self._tensors = {tensor.name: tensor for tensor in self._spec.tensors}

    def _extend(self, spec: ServerSpec) -> None:
        """Have the shards hold further tensors, or hear of those that others have made."""
        if self._closed:
            raise ServerLostError(f"{self._spec} has been closed")
        self._place.extend(spec)
        if self._place.spec.tensors == self._spec.tensors:
            return
        # Ways that were made before lead to the tensors of then.
        self._leave()
        self._know()

    def __reduce__(self) -> Any:
        return type(self)._of, (self._place,)

    @property
    def name(self) -> str | None:
        """The name by which others connect."""
        return self._spec.name

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that is known here; of a table the room for rows, and `dim`."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor that there is, also of those that others have made.

        That of a table is ``"table of "`` and the dtype of its rows.
        """
        self._extend(self._spec)
        return {
            name: f"{'' if tensor.table is None else 'table of '}{tensor.dtype}"
            for name, tensor in self._tensors.items()
        }

    def names(self) -> builtins.list[str]:
        """The names of all tensors that there are, also of those that others have made."""
        return [*self.dtypes]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self.names()

    def __len__(self) -> int:
        return len(self.names())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"ParameterServer(name={self.name!r}, tensors={self.tensors})"

    def pull(
        self, name: str, keys: Any = None, *, wait: bool = True
    ) -> NDArray[np.floating] | Handle | Any:
        """Read a tensor, or some of its rows.

        Parameters
        ----------
        name : str
        keys : None, slice, int or (k,) array of int
            All; rows of the first axis; of a table ids from 0 to 2**62 - 1, or texts, which
            are hashed to such ids, the same in every process, see `ids_of`.
        wait : bool, default=True
            Otherwise a `Handle` is returned.

        Returns
        -------
        array
            A copy, of the tensor's shape, but for the first axis. What it has of one shard is
            the state between two writes there.

        Raises
        ------
        KeyError, IndexError, ValueError, TypeError
            There is no such tensor, or no such rows.
        ServerLostError
            A shard that has some of these rows is lost, or the server has been closed.
        """
        return self._run(wait, self._pull, name, keys)

    def push(
        self, name: str, gradient: Any, keys: Any = None, *, rows: float = 1, wait: bool = True
    ) -> Handle | None:
        """Have the optimizer apply a gradient, where the tensor lies.

        By keys it updates the parameters and the state of these rows alone, also where the
        optimizer has momentum; a key that comes several times brings the sum. Every push counts as
        a step of the optimizer on the whole tensor.

        Parameters
        ----------
        name : str
        gradient : array
            Of the shape that `pull` returns; a sum over `rows`.
        keys : None, slice, int or (k,) array of int
        rows : float, default=1
            Rows of data behind the gradient, by which it is divided.
        wait : bool, default=True
            Otherwise a `Handle` is returned.

        Raises
        ------
        NonFiniteError
            The gradient is NaN or infinite, and nothing has been applied; or an update overflowed,
            and the error says where infinite elements stand now.
        TableFullError
            A table has no room for another row.
        KeyError, IndexError, ValueError, TypeError, ServerLostError
            See `pull`; nothing has been applied where the arguments are wrong.
        """
        done: Handle | None = self._run(
            wait, self._write, Op.APPLY, name, gradient, keys, rows, False
        )
        return done

    def push_pull(
        self, name: str, gradient: Any, keys: Any = None, *, rows: float = 1, wait: bool = True
    ) -> NDArray[np.floating] | Handle | Any:
        """Push, and return the same rows as they are then, in one trip; see `push` and `pull`."""
        return self._run(wait, self._write, Op.APPLY, name, gradient, keys, rows, True)

    def add(self, name: str, values: Any, keys: Any = None, *, wait: bool = True) -> Handle | None:
        """Add to a tensor, or to some of its rows; a key that comes twice is added to twice.

        Parameters
        ----------
        name : str
        values : array or float
            Of the shape that `pull` returns, or a number for all.
        keys : None, slice, int or (k,) array of int
        wait : bool, default=True

        Raises
        ------
        Errors of `push`.
        """
        args = Op.ADD, name, values, keys, 1, False
        done: Handle | None = self._run(wait, self._write, *args)
        return done

    def assign(
        self, name: str, values: Any, keys: Any = None, *, wait: bool = True
    ) -> Handle | None:
        """Put values in the place of a tensor, or of some of its rows; see `add`.

        The optimizer's state stays as it is.
        """
        args = Op.ASSIGN, name, values, keys, 1, False
        done: Handle | None = self._run(wait, self._write, *args)
        return done

    def create(self, tensors: Mapping[str, Any], *, placement: str | Rule = "contiguous") -> None:
        """Make further tensors, which all who use the server can ask for from then on.

        Parameters
        ----------
        tensors : mapping of str to array or Table
            Initial values.
        placement : {"contiguous", "balanced", "round_robin"} or callable, default="contiguous"
            As for `ParameterServer`, of these tensors.

        Raises
        ------
        ValueError, TypeError
            There is one of that name; or an argument is not as it should be.
        ServerLostError
            A shard is lost, or the server has been closed.

        Examples
        --------
        >>> import dps, numpy as np
        >>> with dps.ParameterServer() as server:
        ...     server.create({"w": np.ones(2)})
        ...     server.pull("w")
        array([1., 1.])
        """
        given = initial_values(tensors)
        while True:
            wanted = extended(self._spec, given, placement)
            self._extend(wanted)
            if self._spec.tensors[: len(wanted.tensors)] == wanted.tensors:
                break
        for key, whole in whole_of(given).items():
            restore(self._tensors[key], whole, self._call)

    def put_note(self, name: str, note: bytes) -> None:
        """Keep some bytes beside the tensors, such as what a model is made of.

        Parameters
        ----------
        name : str
            What was kept by that name is replaced.
        note : bytes
        """
        self._reach(0).call("put_note", name, note)

    def note(self, name: str) -> bytes | None:
        """The bytes that are kept by a name; None without any."""
        found: bytes | None = self._reach(0).call("note", name)
        return found

    @staticmethod
    def ids_of(texts: Any) -> NDArray[np.int64]:
        """The ids that texts have as keys of tables: 62 bits of a hash (SipHash).

        Of a million texts two have the same id once in ten million times.

        Parameters
        ----------
        texts : str, or sequence or array of str

        Examples
        --------
        >>> import dps
        >>> dps.ParameterServer.ids_of(["the", "of"]).tolist()
        [4223034638837015711, 1184090839969143662]
        """
        return ids_of(texts)

    def wait(self, name: str, version: int, *, timeout: float | None = None) -> int:
        """Wait until a tensor has had so many writes, see `versions`.

        Clients take turns by it: each waits for the writes of the one before.

        Parameters
        ----------
        name : str
        version : int
        timeout : float, optional
            Seconds, after which it is an error; by default those of the server.

        Returns
        -------
        int
            The writes that there have been.

        Raises
        ------
        TimeoutError
            There have been fewer.
        KeyError, ServerLostError
            See `pull`.

        Examples
        --------
        >>> import dps, numpy as np, threading
        >>> with dps.ParameterServer({"w": np.zeros(2)}) as server:
        ...     threading.Thread(target=server.add, args=("w", 1.0)).start()
        ...     server.wait("w", 1)
        1
        """
        tensor = self._tensor(name)
        limit = self._spec.timeout if timeout is None else timeout
        pause, ending = _FIRST_LOOK, time.monotonic() + limit
        while (seen := self._writes(tensor)) < version:
            if time.monotonic() > ending:
                raise TimeoutError(
                    f"{name!r} has had {seen} writes, and not {version}, after {limit:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)
        return seen

    def _writes(self, tensor: TensorSpec) -> int:
        """The writes that all parts have had which are there."""
        found, lost = [], None
        for part in range(len(tensor.parts)):
            try:
                found.append(int(self._call(tensor, part, "writes")))
            except ServerLostError as error:
                if self._closed:
                    raise
                lost = error
        if lost is not None and not found:
            raise lost
        return min(found)

    def apply(self, name: str, function: Callable[..., Any]) -> builtins.list[Any]:
        """Run a function on each shard, on its own part of a tensor.

        Parameters
        ----------
        name : str
        function : callable
            ``function(values)`` is called where the part lies, with a copy of its rows; of a table
            ``function(ids, rows)``. It may change `values` in place: that is put back as one write
            when it returns. Nobody else reads or writes the part meanwhile, but those who read in
            mapped memory what was there before. It must not ask the server.

        Returns
        -------
        list
            What it returns on each part, in order of rows.

        Raises
        ------
        NonFiniteError
            It has made an element NaN or infinite; that part has not been changed.
        Exception
            Whatever the function raises; parts before that one have been changed.
        """
        if callable(name):
            raise TypeError("apply takes the name of a tensor first, and then the function")
        tensor = self._tensor(name)
        return [self._call(tensor, part, "apply", function) for part in range(len(tensor.parts))]

    @property
    def versions(self) -> dict[str, int]:
        """How many writes each tensor has had: pushes, adds, assigns and functions."""
        status = self._status()
        found = dict.fromkeys(self._tensors, 0)
        for shard in status:
            for name, counts in shard["parts"].items():
                found[name] = max(found[name], counts["writes"])
        return found

    def _status(self) -> list[dict[str, Any]]:
        """What each shard says of itself, of tensors that are known here."""
        status = self._place.status()
        if any(name not in self._tensors for shard in status for name in shard["parts"]):
            self._extend(self._spec)
            status = self._place.status()
        return status

    def stats(self) -> dict[str, Any]:
        """What has been done, how much there is, and who is connected.

        Returns
        -------
        dict
            ``name``, ``seconds`` since it was made, ``bytes``; ``tensors``, of each its ``shape``,
            ``dtype``, ``writes``, ``pushes``, ``reads``, of a table its ``rows``; the rates
            ``writes_per_second`` and ``reads_per_second``, since the last call of this object, at
            first since it was made; ``shards``, of each its ``worker``, the worker of its
            ``mirror`` or None, its ``callers``, and ``lost``: None, or what is lost with it, and
            why.

        Raises
        ------
        ServerLostError
            All shards are lost, or the server has been closed.
        """
        status = self._status()
        self._looked = report(self._spec, status, self._looked)
        return self._looked

    @staticmethod
    def list(*, client: Any = None) -> list[dict[str, Any]]:
        """All servers with names, as `stats` has them; of one that is lost whole the ``error``.

        Parameters
        ----------
        client : distributed.Client, optional
            Of the cluster; without one those of this process are listed.
        """
        found = []
        chosen = places.known(client)
        for name in places.names(chosen):
            try:
                place = places.find(chosen, name)
                place.extend(place.spec)
                found.append(report(place.spec, place.status(), None))
            except LookupError:  # it has been closed meanwhile
                continue
            except ServerLostError as error:
                found.append({"name": name, "error": str(error)})
        return found

    def save(self, path: Any, *, lost: str = "error") -> None:
        """Write tensors, tables, optimizer state and notes to a directory, while others write on.

        What is of one part is a state between two writes. Files are laid out as those of estimators
        are, whatever the number of shards.

        Parameters
        ----------
        path : str or path
            Any that fsspec knows.
        lost : {"error", "skip"}, default="error"
            What to do where a shard is lost. "skip" rescues the others: zeros stand for rows of
            arrays that were there, rows of tables are left out, and a warning says which.

        Raises
        ------
        ServerLostError
            A shard is lost, or with "skip" all of them are.
        NonFiniteError
            A write has overflowed, and its elements have not been assigned since. Nothing is
            written: what is there already stays.
        """
        if lost not in ("error", "skip"):
            raise ValueError(f"lost must be 'error' or 'skip', got {lost!r}")
        self._extend(self._spec)
        gone: dict[int, ServerLostError] = {}  # by shard

        def rescued(shard: int, call: Callable[[], Any], instead: Callable[[], Any]) -> Any:
            if shard not in gone:
                try:
                    return call()
                except ServerLostError as error:
                    if lost == "error" or self._closed:
                        raise
                    gone[shard] = error
            if len(gone) == self._spec.n_shards:
                raise gone[shard]
            return instead()

        def part_of(tensor: TensorSpec, part: int) -> Taken:
            taken: Taken = rescued(
                tensor.parts[part][0], lambda: self._call(tensor, part, "take"),
                lambda: unknown_part(tensor, part, self._spec.optimizer),
            )  # fmt: skip
            return taken

        taken = {
            tensor.name: [part_of(tensor, part) for part in range(len(tensor.parts))]
            for tensor in self._spec.tensors
        }
        notes = rescued(0, lambda: self._reach(0).call("notes"), dict)
        write_server(path, self._spec, taken, notes)
        if gone:
            said = "; ".join(str(error) for error in gone.values())
            warnings.warn(
                f"{path} lacks what is lost: {said}. Zeros stand for rows of arrays, and rows of "
                f"tables are left out{', and so are notes' if 0 in gone else ''}",
                UserWarning,
                stacklevel=2,
            )

    @classmethod
    def load(
        cls,
        path: Any,
        *,
        optimizer: str | Optimizer | None = None,
        learning_rate: float | None = None,
        name: str | None = None,
        n_shards: int | str = "auto",
        placement: str | Rule = "contiguous",
        workers: Sequence[str] | Mapping[str, float] | None = None,
        mirror: bool | str = "auto",
        client: Any = None,
        timeout: float = 60.0,
    ) -> Self:
        """A server with what another has saved, on any number of shards.

        Parameters
        ----------
        path : str or path
        optimizer : str or Optimizer, optional
            That of the saved one by default. Its state is taken over if it is of the same kind.
        learning_rate : float, optional
            That of the saved one by default.
        name, n_shards, placement, workers, mirror, client, timeout
            As for `ParameterServer`. A name is not saved.

        Raises
        ------
        FileNotFoundError, ValueError
            There is none, or it is damaged.
        """
        saved = read_server(path)
        chosen = saved.optimizer if optimizer is None else get_optimizer(optimizer)
        whole = saved.whole if type(chosen) is type(saved.optimizer) else saved.without_state
        rate = saved.rate if learning_rate is None else learning_rate
        made = cls.__new__(cls)
        made._make(
            saved.tensors, whole, chosen, rate, name, n_shards, placement, workers, mirror, client,
            timeout,
        )  # fmt: skip
        for key, note in saved.notes.items():
            made.put_note(key, note)
        return made

    def disconnect(self) -> None:
        """Give back what this object holds of the server, which goes on."""
        self._finish()
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._accesses = {}

    def _finish(self) -> None:
        """Do all that has been handed over."""
        with self._lock:
            later, self._later = self._later, None
        if later is not None:
            later.shutdown()

    def close(self) -> None:
        """End the server, for all who use it; whoever asks it then has an error."""
        self._finish()
        self._closed = True
        self.disconnect()
        if not self._ended:
            self._place.close()
            self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, wait: bool, function: Callable[..., Any], *args: Any) -> Any:
        if wait:
            return function(*args)
        with self._lock:
            if self._later is None:
                self._later = ThreadPoolExecutor(1, thread_name_prefix="dps-server")
            return Handle(self._later.submit(function, *args))

    def _tensor(self, name: str) -> TensorSpec:
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            pass
        if isinstance(name, str):
            self._extend(self._spec)  # somebody else may have made it
            if name in self._tensors:
                return self._tensors[name]
        raise KeyError(
            f"there is no tensor {name!r} on {self._spec}; there are {sorted(self._tensors)}"
        )

    def _access(self, tensor: TensorSpec, part: int) -> tuple[Way, int]:
        """The way to the shard that has a part, and the part's number there."""
        shard, number = self._numbers[tensor.name, part]
        return self._reach(shard), number

    def _reach(self, shard: int) -> Way:
        access = self._accesses.get(shard)
        if access is None:
            with self._lock:
                if self._closed:
                    raise ServerLostError(f"{self._spec} has been closed")
                access = self._accesses.get(shard)
                if access is None:
                    access = self._accesses[shard] = self._place.connect(shard)
        return access

    def _call(self, tensor: TensorSpec, part: int, method: str, *args: Any) -> Any:
        access, number = self._access(tensor, part)
        return access.call(method, number, *args)

    def _pull(self, name: str, keys: Any) -> NDArray[np.floating]:
        tensor = self._tensor(name)
        chosen = choose(tensor, keys)
        found = np.empty((chosen.rows, tensor.width), tensor.dtype)
        pending = []
        try:
            for piece in chosen.pieces:
                if piece.n == 0:
                    continue
                into = found[piece.at]
                if not isinstance(piece.at, slice):
                    into = np.empty((len(piece.at), tensor.width), tensor.dtype)
                access, number = self._access(tensor, piece.part)
                ended = access.peek(number, piece.start, piece.keys, into)
                if ended is None:
                    sent = access.begin(Op.READ, number, piece.start, piece.keys, None, 1, into)
                    pending.append((piece, None, into, sent))
                    continue
                self._judge(tensor, piece, ended)
                if not isinstance(piece.at, slice):
                    found[piece.at] = into
        finally:
            self._collect(tensor, pending, found)
        return found.reshape(chosen.shape)

    def _write(
        self, op: Op, name: str, values: Any, keys: Any, rows: Any, back: bool
    ) -> NDArray[np.floating] | None:
        tensor = self._tensor(name)
        chosen = choose(tensor, keys)
        given = values_for(tensor, chosen, values, spread=op != Op.APPLY)
        if isinstance(rows, bool) or not isinstance(rows, int | float | np.number):
            raise TypeError(f"rows must be a number above 0, got {rows!r}")
        if not 0 < rows < np.inf:
            raise ValueError(f"rows must be a number above 0, got {rows!r}")
        if not np.isfinite(given).all():
            self._judge(tensor, None, Ending.BAD_GRADIENT)
        found = np.empty_like(given) if back else None
        pending = []
        try:
            # A write is counted at every part that is there, so that all have had as many.
            for piece in chosen.pieces:
                own, picks, again = given[piece.at], piece.keys, None
                if op == Op.APPLY and picks is not None:
                    picks, own, again = summed(picks, own)
                own = np.ascontiguousarray(own)
                into = None if found is None else np.empty_like(own)
                try:
                    access, number = self._access(tensor, piece.part)
                    sent = access.begin(op, number, piece.start, picks, own, float(rows), into)
                except ServerLostError:
                    if piece.n or self._closed:
                        raise
                    continue  # nothing is written there
                pending.append((piece, again, into, sent))
        finally:
            self._collect(tensor, pending, found)
        return None if found is None else found.reshape(chosen.shape)

    def _collect(
        self,
        tensor: TensorSpec,
        pending: Sequence[
            tuple[Piece, NDArray[np.int64] | None, NDArray[np.floating] | None, Answer]
        ],
        found: NDArray[np.floating] | None,
    ) -> None:
        """Take all answers, and then raise the first error."""
        errors: list[Exception] = []
        for piece, again, into, sent in pending:
            try:
                self._judge(tensor, piece, sent.result()[0])
            except Exception as error:
                if piece.n or self._closed or not isinstance(error, ServerLostError):
                    errors.append(error)
                continue
            if found is not None and into is not None:
                found[piece.at] = into if again is None else into[again]
        if errors:
            raise errors[0]

    def _judge(self, tensor: TensorSpec, piece: Piece | None, ended: int) -> None:
        """Raise unless a request ended well."""
        if ended == Ending.RAN:
            return
        if ended == Ending.BAD_GRADIENT:
            raise NonFiniteError(
                f"what was given for {tensor.name!r} is NaN or infinite; nothing has been changed"
            )
        assert piece is not None
        where = f"{tensor.where(piece.part)} on shard {tensor.parts[piece.part][0]}"
        if ended == Ending.BAD_UPDATE:
            raise NonFiniteError(
                f"elements of {where}, are infinite after this write: assign finite values to "
                "them, and after a push lower learning_rate, too"
            )
        if ended == Ending.FULL_TABLE:
            raise TableFullError(
                f"{where}, has no room for another row: make it with more than "
                f"rows={tensor.shape[0]}"
            )
        if ended == Ending.STOPPED:
            raise ServerLostError(f"{self._spec} has been closed")
        raise IndexError(f"what was asked for is outside of {where}")
