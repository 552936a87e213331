"""Checks of nodes by workers: once per node and run."""

import pickle
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from curator.executor.fleet import TransientRefusal
from curator.executor.ray_backend import _refusal
from curator.executor.ray_cluster import use_own_token


def asked(log: Path, answer: str | None) -> str | None:
    with log.open("a") as file:
        file.write("asked\n")
    return answer


@pytest.mark.parametrize(
    "answer", [None, "NVDEC does not answer", TransientRefusal("the server is down")]
)
def test_a_node_is_asked_once_in_a_run_unless_the_answer_may_pass(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray's native code reads the token when it is imported, for all tests of this process.
    use_own_token()
    import ray

    here = {"job": "one", "node": "a"}
    context = SimpleNamespace(get_job_id=lambda: here["job"], get_node_id=lambda: here["node"])
    node = SimpleNamespace(get_session_dir_path=lambda: str(tmp_path))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray._private.worker, "_global_node", node)
    check = pickle.dumps(partial(asked, tmp_path / "log", answer))

    def n_asked() -> int:
        answers = [_refusal(check) for _ in range(3)]
        assert answers == [answer] * 3
        assert {type(one) for one in answers} == {type(answer)}
        lines = (tmp_path / "log").read_text().splitlines()
        (tmp_path / "log").unlink()
        return len(lines)

    expected = 3 if isinstance(answer, TransientRefusal) else 1
    assert n_asked() == expected
    for change in ({"node": "b"}, {"job": "two"}):
        here |= change
        assert n_asked() == expected
