"""Files for clusters: Ray's launcher on AWS, the images, and KubeRay's manifests.

KubeRay's own schema is used where it is at hand:

git clone URL-OF-KUBERAY kuberay
KUBERAY_CRDS=kuberay/ray-operator/config/crd/bases python -m pytest tests/infra
"""

import fnmatch
import json
import os
import re
import tomllib
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AWS = ROOT / "infra" / "aws" / "ray-cluster.yaml"
AWS_CLUSTER = yaml.safe_load(AWS.read_text())
LINES = (ROOT / "infra" / "docker" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
KUBERAY = ROOT / "infra" / "kuberay"
FILES = ("raycluster.yaml", "rayjob.yaml")
GIB = 2**30


def test_the_launcher_takes_the_file() -> None:
    schema = files("ray").joinpath("autoscaler", "ray-schema.json")
    jsonschema.validate(AWS_CLUSTER, json.loads(schema.read_text()))


def test_nodes_of_aws_grow_from_zero_and_the_head_does_no_work() -> None:
    head, *workers = AWS_CLUSTER["available_node_types"].items()
    assert head[0] == AWS_CLUSTER["head_node_type"]
    assert head[1]["resources"] == {"CPU": 0}
    assert [name for name, _ in workers] == ["cpu", "gpu"]
    for _, node in workers:
        assert node["min_workers"] == 0 < node["max_workers"]
        # Empty: EC2 states cores, memory and GPUs.
        assert node["resources"] == {}
    assert sum(node["max_workers"] for _, node in workers) == AWS_CLUSTER["max_workers"]


def test_all_nodes_have_the_token_and_the_package_by_its_constraints() -> None:
    assert AWS_CLUSTER["file_mounts"] == {"/home/ubuntu/.ray/auth_token": "~/.ray/auth_token"}
    commands = "\n".join(AWS_CLUSTER["setup_commands"])
    assert "RAY_AUTH_MODE=token" in commands
    assert "infra/install_node.sh ~/env cluster,gpu" in commands
    assert (ROOT / "infra" / "install_node.sh").is_file()


def test_what_users_must_edit_is_marked() -> None:
    marked = [line for line in AWS.read_text().splitlines() if "CHANGE" in line]
    assert any("ami-CHANGE" in line for line in marked)
    assert any("region:" in line for line in marked)
    assert any("Name: curate-s3" in line for line in marked)


def test_what_is_copied_exists_and_is_sent() -> None:
    sent = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = [
        source
        for word, rest in STEPS
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert sorted(copied) == sorted(sent)
    assert all((ROOT / source).exists() for source in copied)
    # The wheel needs no file that the image lacks.
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
    ]
    assert [name for name in needed if not fnmatch.filter(copied, name)] == []


def test_both_images_have_one_base_the_extras_and_an_ordinary_user() -> None:
    extras = next(rest for word, rest in STEPS if word == "ARG" and rest.startswith("EXTRAS"))
    named = extras.removeprefix("EXTRAS=").split(",")
    assert "cluster" in named
    assert set(named) <= set(PROJECT["project"]["optional-dependencies"])
    stages = {rest.split()[-1]: rest.split()[0] for word, rest in STEPS if word == "FROM"}
    assert stages["cpu"] == stages["gpu"] == "node"
    assert stages["node"] == stages["build"] == "${BASE}"
    assert ["USER", "1000"] in STEPS
    settings = " ".join(rest for word, rest in STEPS if word == "ENV")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in settings


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KUBERAY / name).read_text())
    return found


def cluster(name: str) -> dict[str, Any]:
    """The specification of a manifest's cluster."""
    spec: dict[str, Any] = manifest(name)["spec"]
    return spec.get("rayClusterSpec", spec)


def container(group: dict[str, Any]) -> dict[str, Any]:
    """The container of a group's pods that runs Ray."""
    (found,) = group["template"]["spec"]["containers"]
    return dict(found)


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A definition's schema that refuses keys which it does not name; a server drops them."""
    made = dict(schema)
    if made.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in made:
        made["properties"] = {key: strict(value) for key, value in made["properties"].items()}
        # An object without properties, such as `metadata`, is not described here.
        is_open = made.get("x-kubernetes-preserve-unknown-fields") or not made["properties"]
        made.setdefault("additionalProperties", bool(is_open))
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = strict(made["additionalProperties"])
    if isinstance(made.get("items"), dict):
        made["items"] = strict(made["items"])
    return made


def test_the_cluster_of_kuberay_grows_from_zero_with_limits_and_few_rights() -> None:
    spec = cluster("raycluster.yaml")
    assert spec == cluster("rayjob.yaml")
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] > 0
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert [group["groupName"] for group in spec["workerGroupSpecs"]] == ["cpu", "gpu"]
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
    # Ray is that of the images.
    assert spec["rayVersion"] == version("ray")
    assert re.search(rf"^ray=={version('ray')} ", (ROOT / "constraints.txt").read_text(), re.M)
    assert spec["authOptions"]["mode"] == "token"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        one = container(group)
        limits = one["resources"]["limits"]
        # A worker takes a core and about 2 GiB of what the object store leaves.
        store_bytes = int(group["rayStartParams"]["object-store-memory"])
        memory_bytes = int(limits["memory"].removesuffix("Gi")) * GIB
        assert (memory_bytes - store_bytes) / int(limits["cpu"]) >= 3 * GIB
        assert one["envFrom"] == [{"secretRef": {"name": "curate-credentials"}}]
        assert one["securityContext"]["runAsNonRoot"] is True
    # Pods with a GPU get its video engines.
    gpu = container(spec["workerGroupSpecs"][1])
    assert gpu["resources"]["limits"]["nvidia.com/gpu"] == "1"
    variables = {entry["name"]: entry["value"] for entry in gpu["env"]}
    assert "video" in variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")


@pytest.mark.parametrize("name", FILES)
def test_kuberay_takes_the_manifest(name: str) -> None:
    folder = os.environ.get("KUBERAY_CRDS")
    if folder is None:
        pytest.skip("KUBERAY_CRDS does not name the folder with KubeRay's definitions")
    found = manifest(name)
    plural = found["kind"].lower() + "s"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load((Path(folder) / f"ray.io_{plural}.yaml").read_text(), loader)
    (served,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    assert found["apiVersion"] == "ray.io/v1"
    schema = strict(served["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(found, schema)
    for key, wrong in (("workerGroupSpec", []), ("headGroupSpec", 1)):
        spec = cluster(name) | {key: wrong}
        inner = (
            {**found["spec"], "rayClusterSpec": spec} if "rayClusterSpec" in found["spec"] else spec
        )
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, "spec": inner}, schema)
