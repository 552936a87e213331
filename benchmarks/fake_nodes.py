"""Nodes of Ray's autoscaler that are processes on this machine, with memory.

Ray's own `fake_multinode` refuses node types that name their memory, and workers ask for it.
"""

import json
from threading import Lock
from typing import Any
from unittest.mock import patch

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

_REAL = parameter.RayParams
_LOCK = Lock()
"""The autoscaler launches nodes in several threads."""


class FakeNodes(FakeMultiNodeProvider):  # type: ignore[misc]
    """Ray's provider, which passes memory on as what it is."""

    def _create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, Any],
        labels: dict[str, str],
    ) -> None:
        memory = resources.get("memory")
        others = {name: amount for name, amount in resources.items() if name != "memory"}

        def with_memory(**options: Any) -> Any:  # noqa: ANN401
            environment = options["env_vars"]
            given = json.loads(environment["RAY_OVERRIDE_RESOURCES"])
            environment["RAY_OVERRIDE_RESOURCES"] = json.dumps({**given, "memory": memory})
            return _REAL(**options, memory=memory)

        with _LOCK, patch.object(parameter, "RayParams", with_memory):
            super()._create_node_with_resources_and_labels(node_config, tags, count, others, labels)
