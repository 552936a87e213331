"""The search on a GPU by a worker; FAISS's index for CPUs stands for the one of GPUs."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated_workers import Simulated

from curator.executor import corpus_work
from curator.executor.corpus_work import CorpusWork
from curator.executor.engine import Engine
from curator.executor.fleet import Worker, WorkerLost
from curator.executor.work import RepeatedUnit
from curator.executor.worker import call_chain
from curator.stages.dedup.cluster_search import faiss_refusal, search_clusters
from curator.stages.dedup.retention import Duplicates, find_duplicates
from curator.storage import open_store

OPTIONS: dict[str, Any] = {"similarity": 0.8, "exact_below": 100, "probes": 8}
RNG = np.random.default_rng(0)
NEAR = RNG.normal(size=(120, 24))[RNG.integers(0, 120, 600)] + 0.3 * RNG.normal(size=(600, 24))
VECTORS = (NEAR / np.linalg.norm(NEAR, axis=1, keepdims=True)).astype(np.float32)
ORDER = RNG.permutation(600)


def answer(worker: Worker, unit: object, n_deaths: int) -> object:
    sent = RepeatedUnit(unit=unit, n_deaths=n_deaths) if n_deaths else unit
    return pickle.loads(call_chain(worker.pool.chain, pickle.dumps(sent)))


@pytest.fixture
def engine_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Simulated], Engine]:
    monkeypatch.setattr("curator.executor.engine.available_gpus", lambda: 1)

    def made(backend: Simulated) -> Engine:
        engine = Engine(address=None, workers=2)
        monkeypatch.setattr(engine, "_start", lambda: SimpleNamespace(backend=backend))
        return engine

    return made


def is_equal(a: Duplicates, b: Duplicates) -> bool:
    names = Duplicates.__dataclass_fields__
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_a_worker_with_a_gpu_finds_what_the_driver_finds(
    engine_with: Callable[[Simulated], Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_moved = 0

    def moved(resources: object, gpu: int, index: object) -> object:
        nonlocal n_moved
        n_moved += 1
        return index

    monkeypatch.setattr("faiss.StandardGpuResources", object, raising=False)
    monkeypatch.setattr("faiss.index_cpu_to_gpu", moved, raising=False)
    backend = Simulated(answer)
    engine = engine_with(backend)
    store = open_store(str(tmp_path))
    found = search_clusters(VECTORS, ORDER, CorpusWork("dedup", store, engine), OPTIONS)
    assert list(store.list()) == []
    assert n_moved == 1
    assert [worker.pool.resources.gpus for worker in backend.ended] == [1]
    expected = find_duplicates(VECTORS, ORDER, **OPTIONS)
    assert expected.is_duplicate.sum() > 100
    assert is_equal(found, expected)
    assert "cpu_instead_of_gpu" not in engine.facts()


def fails(worker: Worker, unit: object, n_deaths: int) -> object:
    del worker, unit, n_deaths
    raise AssertionError("it got a unit")


@pytest.mark.parametrize(
    ("does", "refusal", "words"),
    [
        (fails, "no GPU code", "dedup: no GPU code"),
        (None, "", "dedup: no worker with a GPU within 0 s"),
        (lambda *_: WorkerLost("died"), "", "dedup: the process that searched on the GPU died"),
        (answer, "", "dedup: FAISS fails on the GPU: out of memory"),
    ],
)
def test_where_no_gpu_searches_the_driver_does_and_it_is_counted(
    does: Callable[..., object] | None,
    refusal: str,
    words: str,
    engine_with: Callable[[Simulated], Engine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_memory(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("faiss.StandardGpuResources", no_memory, raising=False)
    first = [does] if does is not None else []

    def then(worker: Worker, unit: object, n_deaths: int) -> object:
        return answer(worker, unit, n_deaths) if n_deaths else first[0](worker, unit, n_deaths)

    backend = Simulated(then, nodes=["one"] if does is not None else [])
    backend.refusals = {"one": refusal} if refusal else {}
    if does is None:
        monkeypatch.setattr(corpus_work, "WAIT_S", 0.0)
    engine = engine_with(backend)
    store = open_store(str(tmp_path))
    found = search_clusters(VECTORS, ORDER, CorpusWork("dedup", store, engine), OPTIONS)
    assert list(store.list()) == []
    assert is_equal(found, find_duplicates(VECTORS, ORDER, **OPTIONS))  # type: ignore[arg-type]
    assert engine.facts()["cpu_instead_of_gpu"] == {words: 600}
    assert words in caplog.text


def test_a_node_without_a_gpu_is_refused() -> None:
    import faiss

    if getattr(faiss, "get_num_gpus", int)():
        pytest.skip("there is a GPU")
    assert faiss_refusal() == "FAISS sees no GPU, or is a build without GPU code"
