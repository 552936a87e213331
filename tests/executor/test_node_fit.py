"""What a worker needs, compared with the nodes that are there and those that may come."""

import json

import pytest

from curator.executor.ray_watch import ClusterState, adds_nodes, amounts, is_adding

GIB = 1 << 30
WORKER = {"CPU": 1.0, "memory": 2.0 * GIB}
SMALL = {"CPU": 1.0, "memory": 1.0 * GIB}
LARGE = {"CPU": 4.0, "memory": 16.0 * GIB}


def test_a_demand_that_a_node_can_meet_is_no_problem_even_if_the_node_is_busy() -> None:
    assert ClusterState(nodes={"a": SMALL, "b": LARGE}).unmet(WORKER) is None
    assert ClusterState(nodes={"a": SMALL}, may_come=[LARGE]).unmet(WORKER) is None


def test_several_nodes_together_are_no_place() -> None:
    """Pins that sums of a cluster say nothing: 2 GiB are there in all."""
    why = ClusterState(nodes={"a": SMALL, "b": SMALL}).unmet(WORKER)
    assert why == "no node can hold it: 2 with 1 CPUs, 1.0 GiB of memory (too little memory)"


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        ({"CPU": 8.0}, "4 CPUs (too little CPUs)"),
        ({"GPU": 0.5, "memory": GIB}, "0 GPUs, 16.0 GiB of memory (too little GPUs)"),
        ({"CPU": 1.0, "cutters": 0.001}, "4 CPUs, 0 cutters (too little cutters)"),
    ],
)
def test_each_resource_that_is_missing_is_named(demand: dict[str, float], words: str) -> None:
    assert ClusterState(nodes={"a": LARGE}).unmet(demand) == f"no node can hold it: 1 with {words}"


def test_node_types_of_the_autoscaler_are_named_too() -> None:
    why = ClusterState(nodes={}, may_come=[SMALL], has_autoscaler=True).unmet(WORKER)
    assert why is not None
    assert "no node can hold it: there is none, nor can a node type of the autoscaler" in why
    unknown = ClusterState(nodes={"a": SMALL}, has_autoscaler=True).unmet(WORKER)
    assert unknown is not None
    assert "does not say which nodes it may add" in unknown


def test_node_types_that_declare_no_memory_get_workers_that_ask_for_none() -> None:
    undeclared = {"CPU": 1.0}
    head = {"CPU": 0.0, "memory": 8.0 * GIB}

    def lacks(**more: object) -> bool:
        state = ClusterState(nodes={"head": head}, has_autoscaler=True, **more)  # type: ignore[arg-type]
        return state.lacks_only_memory(WORKER)

    assert lacks(may_come=[undeclared])
    assert lacks(may_come=None), "Ray's own launcher does not say what its types have"
    assert not lacks(may_come=None, is_adding=True), "nodes are on their way"
    assert not lacks(may_come=[SMALL]), "it said how much memory there is: too little"
    assert not lacks(may_come=[undeclared, LARGE])
    assert not ClusterState(nodes={"head": head}).lacks_only_memory(WORKER)
    assert not ClusterState(nodes={}, has_autoscaler=True).lacks_only_memory({"CPU": 1.0})


def test_an_autoscaler_without_node_types_adds_none() -> None:
    """Ray runs one on each head; it names the type of each node after the node."""

    def status(**report: object) -> bytes:
        return json.dumps({"autoscaler_report": report}).encode()

    assert not adds_nodes(None)
    assert not adds_nodes(status(node_type_mapping={"a09d": "node_a09d"}))
    assert adds_nodes(status(node_type_mapping={"ffff": "ray.head.default"}))
    assert not is_adding(status(pending_nodes=[], pending_launches={}, failed_nodes=[]))
    assert is_adding(status(pending_nodes=[["10.0.0.1", "cpu", "setting-up"]]))
    assert is_adding(status(failed_nodes=[["10.0.0.1", "cpu"]]))


def test_amounts_in_words() -> None:
    assert amounts({"CPU": 1.0, "GPU": 0.0, "memory": 2.0 * GIB}) == "1 CPUs, 2.0 GiB of memory"
    assert amounts({}) == "nothing"
