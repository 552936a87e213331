"""The search for duplicates in clusters, on a GPU of this machine or of the cluster.

The driver has all vectors, but often no GPU: a worker that holds one reads them, and searches as
the driver would. Where none comes, or it fails, the driver searches, and `summary.json` counts it.
"""

# ruff: noqa: N803, N806 - shape letters

import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curator.errors import CuratorError, one_line
from curator.executor.engine import Engine
from curator.executor.worker import Step
from curator.stage import WORKER_BYTES, Resources
from curator.stages.dedup.pair_search import PairSearch
from curator.stages.dedup.retention import Duplicates, find_duplicates
from curator.storage import Store
from curator.tables.checksums import read_parquet
from curator.tables.clip_vectors import as_matrix
from curator.tables.kept_vectors import write_vectors

WAIT_S = 60.0
"""Wait for a worker with a GPU: others may hold all of them."""
_COPIES = 4
"""Of the vectors in a worker: the object, the table, sorted, in the index."""

Unit = tuple[str, NDArray[np.int64]]
"""Object with the vectors, and the order of the clips, int64 [N]."""


class GpuSearch:
    """The step of a worker that holds a GPU.

    Args:
        store: Where the vectors are.
        options: Of `find_duplicates`.
    """

    def __init__(self, *, store: Store, options: Mapping[str, Any]) -> None:
        self._store, self._options = store, options

    def __call__(self, unit: Unit) -> Duplicates:
        """Searches on the first GPU that this process sees.

        Raises:
            CuratorError: FAISS cannot.
        """
        name, order = unit
        vectors_ND = as_matrix(read_parquet(self._store, name)["vector"].combine_chunks())
        try:
            return find_duplicates(vectors_ND, order, **self._options, on_gpu=True)
        except RuntimeError as error:
            raise CuratorError(f"FAISS fails on the GPU: {one_line(error)}") from error

    def repeat(self, unit: Unit, n_deaths: int) -> Duplicates:
        """Does not try again.

        Raises:
            CuratorError: Always.
        """
        del unit, n_deaths
        raise CuratorError("the process that searched on the GPU died")


def faiss_refusal() -> str | None:
    """Returns why FAISS cannot use a GPU on this node, or None.

    It is asked in a process of its own, which a driver that does not work ends.
    """
    code = "import faiss, sys; sys.exit(not getattr(faiss, 'get_num_gpus', int)())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    return "FAISS sees no GPU, or is a build without GPU code" if done.returncode else None


def search_clusters(
    vectors_ND: NDArray[np.float32],
    order: NDArray[np.int64],
    where: PairSearch,
    options: Mapping[str, Any],
) -> Duplicates:
    """Finds duplicates, on a GPU if there is one.

    Args:
        vectors_ND: float32 [N, D], L2-normalised.
        order: int64 [N], numbers of the clips from best to worst.
        where: Has the engine and the store; without them this process searches.
        options: Of `find_duplicates`.
    """
    engine, store = where.engine, where.store
    if engine is not None and store is not None and engine.n_gpus() >= 1:
        found = _on_gpu(vectors_ND, order, engine, store, options)
        if isinstance(found, Duplicates):
            return found
        engine.count_cpu_instead("dedup", found, len(order))
    return find_duplicates(vectors_ND, order, **options)


def _on_gpu(
    vectors_ND: NDArray[np.float32],
    order: NDArray[np.int64],
    engine: Engine,
    store: Store,
    options: Mapping[str, Any],
) -> Duplicates | str:
    """Returns what a worker found, or why none did."""
    n_bytes = WORKER_BYTES + _COPIES * vectors_ND.nbytes
    step = Step(
        make=GpuSearch,
        settings={"store": store, "options": options},
        resources=Resources(cpus=1, gpus=1, memory_bytes=n_bytes),
        keeps_state=True,
        name="dedup",
    )
    name = write_vectors(store, vectors_ND)
    pool = engine.pool([step], most=1, check=faiss_refusal)
    try:
        pool.submit((name, order))
        until_s = time.monotonic() + WAIT_S
        while pool.n_workers or time.monotonic() < until_s:
            for found in pool.poll(timeout=1.0):
                return found  # type: ignore[no-any-return]
            if pool.refusal is not None and not engine.joins:
                break
        return pool.refusal or f"no worker with a GPU within {WAIT_S:.0f} s"
    except CuratorError as error:
        return str(error)
    finally:
        pool.close()
        store.delete([name])
