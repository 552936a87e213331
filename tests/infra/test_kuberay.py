"""KubeRay's manifests: what runs rely on, and KubeRay's own schema where that is at hand.

git clone URL-OF-KUBERAY kuberay
KUBERAY_CRDS=kuberay/ray-operator/config/crd/bases python -m pytest tests/infra/test_kuberay.py
"""

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "infra" / "kuberay"
FILES = ("raycluster.yaml", "rayjob.yaml")
GIB = 2**30


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
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


@pytest.mark.parametrize("name", FILES)
def test_groups_grow_from_zero_and_the_head_does_no_work(name: str) -> None:
    spec = cluster(name)
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] > 0
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert [group["groupName"] for group in spec["workerGroupSpecs"]] == ["cpu", "gpu"]
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]


@pytest.mark.parametrize("name", FILES)
def test_ray_is_that_of_the_images_and_has_a_token(name: str) -> None:
    assert cluster(name)["rayVersion"] == version("ray")
    assert re.search(rf"^ray=={version('ray')} ", (ROOT / "constraints.txt").read_text(), re.M)
    assert cluster(name)["authOptions"]["mode"] == "token"


@pytest.mark.parametrize("name", FILES)
def test_every_pod_has_limits_credentials_and_few_rights(name: str) -> None:
    spec = cluster(name)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        one = container(group)
        limits = one["resources"]["limits"]
        # A worker takes a core and about 2 GiB of what the object store leaves.
        store_bytes = int(group["rayStartParams"]["object-store-memory"])
        memory_bytes = int(limits["memory"].removesuffix("Gi")) * GIB
        assert (memory_bytes - store_bytes) / int(limits["cpu"]) >= 3 * GIB
        assert one["envFrom"] == [{"secretRef": {"name": "curate-credentials"}}]
        assert one["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("name", FILES)
def test_pods_with_a_gpu_get_its_video_engines(name: str) -> None:
    _, gpu = cluster(name)["workerGroupSpecs"]
    one = container(gpu)
    assert one["resources"]["limits"]["nvidia.com/gpu"] == "1"
    variables = {entry["name"]: entry["value"] for entry in one["env"]}
    assert "video" in variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")


def test_both_files_have_the_same_cluster() -> None:
    assert cluster("rayjob.yaml") == cluster("raycluster.yaml")


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
