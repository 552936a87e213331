"""Says whether a worker's demand fits any node that is there, or any that may come."""

from collections import Counter
from collections.abc import Mapping, Sequence

from curator.executor.ray_watch import Amounts, ClusterState

MEMORY = "memory"

_NAMES = {"CPU": "CPUs", "GPU": "GPUs", MEMORY: "memory"}


def fits(demand: Amounts, node: Amounts) -> bool:
    """Returns whether a whole node can meet a demand."""
    return not lacking(demand, node)


def lacking(demand: Amounts, node: Amounts) -> list[str]:
    """Returns the resources of a demand of which a whole node has too little."""
    return [name for name, amount in demand.items() if amount > node.get(name, 0.0) + 1e-9]


def lacks_only_memory(demand: Amounts, state: ClusterState) -> bool:
    """Returns whether a node may come if a worker asks for no memory.

    Node types that do not declare their memory offer none to the autoscaler, although their nodes
    have some. An autoscaler that does not say what its types have may have such types.
    """
    if MEMORY not in demand or not state.has_autoscaler or state.is_adding:
        return False
    if any(fits(demand, node) for node in (*state.nodes.values(), *(state.may_come or ()))):
        return False
    others = {name: amount for name, amount in demand.items() if name != MEMORY}
    if state.may_come is None:
        return True
    return any(MEMORY not in kind and fits(others, kind) for kind in state.may_come)


def unmet(demand: Amounts, state: ClusterState) -> str | None:
    """Says why no node can ever hold a worker; None if one that is there, or may come, can."""
    there, may_come = list(state.nodes.values()), state.may_come or ()
    if any(fits(demand, node) for node in (*there, *may_come)):
        return None
    why = [f"no node can hold it: {_shortfalls(demand, there)}"]
    if state.may_come is not None:
        why.append(f"nor can a node type of the autoscaler: {_shortfalls(demand, may_come)}")
    elif state.has_autoscaler:
        why.append("the autoscaler does not say which nodes it may add")
    return ", ".join(why)


def amounts(of: Amounts) -> str:
    """Describes resources in words, such as `1 CPUs, 2.0 GiB of memory`."""
    return ", ".join(_amount(name, n) for name, n in of.items() if n) or "nothing"


def _amount(name: str, n: float) -> str:
    if name == MEMORY:
        return f"{n / (1 << 30):.1f} GiB of memory"
    return f"{n:g} {_NAMES.get(name, name)}"


def _shortfalls(demand: Amounts, nodes: Sequence[Amounts]) -> str:
    """Describes kinds of nodes by what a worker lacks there."""
    if not nodes:
        return "there is none"
    kinds: Counter[str] = Counter()
    for node in nodes:
        has: Mapping[str, float] = {name: node.get(name, 0.0) for name in demand}
        lacks = " and ".join(_NAMES.get(name, name) for name in lacking(demand, node))
        listed = ", ".join(_amount(name, n) for name, n in has.items())
        kinds[f"{listed} (too little {lacks})"] += 1
    return "; ".join(f"{n} with {kind}" for kind, n in kinds.most_common(4))
