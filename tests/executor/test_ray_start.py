"""What is replaced of Ray's own while it starts is there, in this Ray, and is put back."""

import importlib.metadata
import inspect
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from curator.executor.ray_cluster import LOOPBACK_KEPT, NO_DAEMONS, RayCluster, replaced


def test_the_private_methods_that_are_replaced_exist_and_take_what_ours_take() -> None:
    """Fails with a Ray that renamed them: look how it starts, and move the bound."""
    from ray._private import node, services

    before = {name: inspect.getattr_static(node.Node, name) for name in NO_DAEMONS}
    resolve = services.resolve_ip_for_localhost
    assert list(inspect.signature(resolve).parameters) == ["host"]
    with replaced(node.Node, NO_DAEMONS), replaced(services, LOOPBACK_KEPT):
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        assert all(
            inspect.getattr_static(node.Node, name) is not before[name] for name in NO_DAEMONS
        )
    assert {name: inspect.getattr_static(node.Node, name) for name in NO_DAEMONS} == before
    assert services.resolve_ip_for_localhost is resolve


def test_what_the_scheduler_asks_of_private_state_exists() -> None:
    from ray import _raylet
    from ray._private import node, state, worker

    assert hasattr(worker, "_global_node")
    assert callable(_raylet.setproctitle)
    assert callable(node.Node.get_session_dir_path)
    assert callable(node.Node.dead_processes)
    for name in (
        "get_draining_nodes", "get_max_resources_from_cluster_config", "get_cluster_config",
    ):  # fmt: skip
        assert callable(getattr(state.GlobalState, name))


@pytest.mark.parametrize(
    ("given", "found", "warns"),
    [
        ("127.0.0.1:6379", "10.0.0.7:6379", True),
        ("localhost:6379", "10.0.0.7:6379", True),
        ("127.0.0.1:6379", "127.0.0.1:6379", False),
        ("auto", "10.0.0.7:6379", False),
        ("10.0.0.7:6379", "10.0.0.7:6379", False),
    ],
)
def test_a_cluster_that_is_not_on_the_loopback_that_was_named_is_said(
    given: str, found: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray's `ray start` and `ray.init` replace 127.0.0.1, and then listen on all addresses."""
    ray = SimpleNamespace(init=lambda **options: SimpleNamespace(address_info={"address": found}))
    RayCluster(given, None)._init(ray)
    assert (f"at {given} is at {found}" in caplog.text) == warns


def test_this_ray_is_within_the_bounds_of_the_package() -> None:
    """Private methods are replaced, so that a Ray that was not tried is not taken."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    needs = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    bounds = [need.specifier for need in needs if need.name == "ray"]
    assert len(bounds) >= 3
    for bound in bounds:
        assert "<" in {spec.operator for spec in bound}
        assert importlib.metadata.version("ray") in bound
