"""The cluster for Ray's launcher: its schema, and what runs rely on."""

import json
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "aws" / "ray-cluster.yaml"
CLUSTER = yaml.safe_load(FILE.read_text())


def test_the_launcher_takes_the_file() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = Path(spec.origin).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(CLUSTER, json.loads(schema.read_text()))


def test_nodes_grow_from_zero_and_the_head_does_no_work() -> None:
    head, *workers = CLUSTER["available_node_types"].items()
    assert head[0] == CLUSTER["head_node_type"]
    assert head[1]["resources"] == {"CPU": 0}
    assert [name for name, _ in workers] == ["cpu", "gpu"]
    for _, node in workers:
        assert node["min_workers"] == 0 < node["max_workers"]
        # Empty: EC2 states cores, memory and GPUs.
        assert node["resources"] == {}
    assert sum(node["max_workers"] for _, node in workers) == CLUSTER["max_workers"]


def test_all_nodes_have_the_token_and_the_package_by_its_constraints() -> None:
    assert CLUSTER["file_mounts"] == {"/home/ubuntu/.ray/auth_token": "~/.ray/auth_token"}
    commands = "\n".join(CLUSTER["setup_commands"])
    assert "RAY_AUTH_MODE=token" in commands
    assert "infra/install_node.sh ~/env cluster,gpu" in commands
    assert (ROOT / "infra" / "install_node.sh").is_file()


def test_what_users_must_edit_is_marked() -> None:
    marked = [line for line in FILE.read_text().splitlines() if "CHANGE" in line]
    assert any("ami-CHANGE" in line for line in marked)
    assert any("region:" in line for line in marked)
    assert any("Name: curate-s3" in line for line in marked)
