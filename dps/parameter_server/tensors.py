"""Named tensors, as users read and write them."""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dps._runtime.wire.message import Op
from dps.parameter_server.client.handles import Handle
from dps.parameter_server.client.requests import Requests
from dps.parameter_server.client.rows import ids_of

if TYPE_CHECKING:
    from dps.parameter_server.client.local import Place

#: Seconds between two checks of a caller that waits for writes, at first and later.
_FIRST_LOOK, _LOOK = 0.0005, 0.02


class NamedTensors:
    """The tensors of a server; see `ParameterServer`."""

    def __init__(self, place: Place) -> None:
        self._requests = Requests(place)
        self._later: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor that is known here; of a table the room for rows, and `dim`."""
        return {name: tensor.shape for name, tensor in self._requests.tensors.items()}

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor, including those that other clients have created.

        That of a table is ``"table of "`` and the dtype of its rows.
        """
        self._requests.extend(self._requests.spec)
        return {
            name: f"{'' if tensor.table is None else 'table of '}{tensor.dtype}"
            for name, tensor in self._requests.tensors.items()
        }

    def names(self) -> builtins.list[str]:
        """The names of all tensors, including those that other clients have created."""
        return [*self.dtypes]

    def __contains__(self, name: object) -> bool:
        return name in self._requests.tensors or name in self.names()

    def __len__(self) -> int:
        return len(self.names())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __bool__(self) -> bool:
        return True

    def pull(
        self, name: str, keys: Any = None, *, wait: bool = True
    ) -> NDArray[np.floating] | Handle | Any:
        """Read a tensor, or some of its rows.

        Parameters
        ----------
        name : str
        keys : None, slice, int or (k,) array of int
            None reads all rows. Else rows of the first axis; for a table ids from 0 to 2**62 - 1,
            or texts, which are hashed to the same ids in every process, see `ids_of`.
        wait : bool, default=True
            If False, a `Handle` is returned at once.

        Returns
        -------
        array
            A copy with the shape of the tensor, except for the first axis. The part of each shard
            is its state between two writes.

        Raises
        ------
        KeyError, IndexError, ValueError, TypeError
            There is no such tensor, or no such rows.
        ServerLostError
            A shard with some of these rows is lost, or the server has been closed.
        """
        return self._run(wait, self._requests.pull, name, keys)

    def push(
        self, name: str, gradient: Any, keys: Any = None, *, rows: float = 1, wait: bool = True
    ) -> Handle | None:
        """Apply a gradient to a tensor with the server's optimizer.

        With keys, only the parameters and state of these rows are updated, also with momentum. A
        key that occurs several times gets the sum. Every push counts as a step of the optimizer on
        the whole tensor.

        Parameters
        ----------
        name : str
        gradient : array
            Array of the shape that `pull` returns: the sum of the gradients of `rows` rows.
        keys : None, slice, int or (k,) array of int
        rows : float, default=1
            Number of data rows behind the gradient, by which it is divided.
        wait : bool, default=True
            If False, a `Handle` is returned at once.

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
        return self._run(wait, self._requests.write, Op.APPLY, name, gradient, keys, rows, False)

    def push_pull(
        self, name: str, gradient: Any, keys: Any = None, *, rows: float = 1, wait: bool = True
    ) -> NDArray[np.floating] | Handle | Any:
        """Push, and return the new values of the same rows, in one trip; see `push` and `pull`."""
        return self._run(wait, self._requests.write, Op.APPLY, name, gradient, keys, rows, True)

    def add(self, name: str, values: Any, keys: Any = None, *, wait: bool = True) -> Handle | None:
        """Add to a tensor, or to some of its rows; a key that occurs twice is added to twice.

        Parameters
        ----------
        name : str
        values : array or float
            Array of the shape that `pull` returns, or a number for all elements.
        keys : None, slice, int or (k,) array of int
        wait : bool, default=True

        Raises
        ------
        Errors of `push`.
        """
        args = Op.ADD, name, values, keys, 1, False
        return self._run(wait, self._requests.write, *args)

    def assign(
        self, name: str, values: Any, keys: Any = None, *, wait: bool = True
    ) -> Handle | None:
        """Replace the values of a tensor, or of some of its rows; see `add`.

        The optimizer's state stays as it is.
        """
        args = Op.ASSIGN, name, values, keys, 1, False
        return self._run(wait, self._requests.write, *args)

    @staticmethod
    def ids_of(texts: Any) -> NDArray[np.int64]:
        """Return the ids of texts as keys of tables: 62 bits of a hash (SipHash).

        Among a million texts two share an id with a probability of 1e-7.

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
        """Wait until `versions` has counted some writes to a tensor.

        Use it as a barrier, or to take turns.

        Parameters
        ----------
        name : str
        version : int
        timeout : float, optional
            Seconds after which it raises. The default is the timeout of the server.

        Returns
        -------
        int
            Number of writes so far.

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
        tensor = self._requests.tensor(name)
        limit = self._requests.spec.timeout if timeout is None else timeout
        pause, ending = _FIRST_LOOK, time.monotonic() + limit
        while (seen := self._requests.writes(tensor)) < version:
            if time.monotonic() > ending:
                raise TimeoutError(
                    f"{name!r} has had {seen} writes, and not {version}, after {limit:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LOOK)
        return seen

    def apply(self, name: str, function: Callable[..., Any]) -> builtins.list[Any]:
        """Run a function on each shard, on its part of a tensor.

        Parameters
        ----------
        name : str
        function : callable
            ``function(values)`` gets a copy of the rows of a part; ``function(ids, rows)`` for a
            table. It may change `values` in place, which becomes one write when it returns. No
            other process reads or writes the part meanwhile, except that readers in mapped memory
            see its former values. It must not call the server.

        Returns
        -------
        list
            The results for each part, in the order of rows.

        Raises
        ------
        NonFiniteError
            The function has made an element NaN or infinite; that part is unchanged.
        Exception
            The function's own exception; parts before that one have been changed.
        """
        if callable(name):
            raise TypeError("apply takes the name of a tensor first, and then the function")
        tensor = self._requests.tensor(name)
        return [
            self._requests.call(tensor, part, "apply", function)
            for part in range(len(tensor.parts))
        ]

    @property
    def versions(self) -> dict[str, int]:
        """Number of writes to each tensor: pushes, adds, assigns and functions."""
        status = self._requests.status()
        found = dict.fromkeys(self._requests.tensors, 0)
        for shard in status:
            for name, counts in shard["parts"].items():
                # Another client may have created it since.
                found[name] = max(found.get(name, 0), counts["writes"])
        return found

    def _run(self, wait: bool, function: Callable[..., Any], *args: Any) -> Any:
        if wait:
            return function(*args)
        with self._lock:
            if self._later is None:
                self._later = ThreadPoolExecutor(1, thread_name_prefix="dps-server")
            return Handle(self._later.submit(function, *args))

    def _finish(self) -> None:
        """Complete all pending calls."""
        with self._lock:
            later, self._later = self._later, None
        if later is not None:
            later.shutdown()
