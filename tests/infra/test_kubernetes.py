"""Manifests for Kubernetes: each promise holds for every pod of every combination of components.

The schemas of Kubernetes and of KubeRay are used where they are at hand:

uv pip install kubernetes-validate
git clone URL-OF-KUBERAY kuberay
KUBERAY_CRDS=kuberay/ray-operator/config/crd/bases python -m pytest tests/infra
"""

import copy
import ipaddress
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml

from curator.cli import make_parser
from curator.executor.sandbox import MAX_FILE_BYTES
from curator.stages.analyze.analysis_driver import STORE_S
from tests.kustomizations import Document, built, documents, rendered

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "infra" / "kuberay"
OVERLAYS = sorted(path.name for path in (KUBERAY / "overlays").iterdir())
ACCESS = ((), ("eks",), ("gke",))
OPTIONAL = ("prometheus", "spot", "cpu-only", "job")
"""Components that an overlay may list, in this order."""
GIB = 2**30
PART = {"app.kubernetes.io/part-of": "curate"}
UID = 1000
Spec = dict[str, Any]


class Pod(NamedTuple):
    """A pod that Kubernetes gets: a template of ours with what KubeRay adds to it.

    Attributes:
        name: Group of pods, for messages.
        template: Metadata and specification.
    """

    name: str
    template: Document

    @property
    def spec(self) -> Spec:
        return dict(self.template["spec"])

    @property
    def containers(self) -> list[Spec]:
        return [*self.spec["containers"], *self.spec.get("initContainers", [])]


@cache
def combinations() -> Mapping[tuple[str, ...], list[Document]]:
    """Names of components -> what they render to, for every choice of components."""
    made = {}
    for access, chosen in itertools.product(ACCESS, itertools.product((False, True), repeat=4)):
        names = (*access, *itertools.compress(OPTIONAL, chosen))
        kustomization = {
            "resources": ["../../base"],
            "components": [f"../../components/{name}" for name in names],
        }
        made[names] = built(kustomization, KUBERAY / "overlays" / "any")
    return made


def of_kind(kind: str, resources: Iterable[Document]) -> list[Document]:
    return [one for one in resources if one["kind"] == kind]


def cluster_of(resources: Iterable[Document]) -> Spec:
    """The specification of the only cluster, permanent or of a job."""
    jobs = of_kind("RayJob", resources)
    specs = [one["spec"]["rayClusterSpec"] for one in jobs]
    (spec,) = specs + [one["spec"] for one in of_kind("RayCluster", resources)]
    return dict(spec)


def pods_of(resources: Iterable[Document]) -> list[Pod]:
    """All pods that KubeRay makes. Without a template of ours, a submitter has no rights set."""
    resources = list(resources)
    spec = cluster_of(resources)
    head = copy.deepcopy(spec["headGroupSpec"]["template"])
    if spec.get("enableInTreeAutoscaling"):
        options = spec["autoscalerOptions"]
        fields = {key: options[key] for key in ("resources", "securityContext") if key in options}
        head["spec"]["containers"].append(
            {"name": "autoscaler", "image": head["spec"]["containers"][0]["image"], **fields}
        )
    made = [Pod("head", head)]
    for group in spec["workerGroupSpecs"]:
        worker = copy.deepcopy(group["template"])
        first = worker["spec"]["containers"][0]
        waiting = {key: first[key] for key in ("image", "securityContext") if key in first}
        worker["spec"].setdefault("initContainers", []).append(
            {"name": "wait-gcs-ready", **waiting}
        )
        made.append(Pod(group["groupName"], worker))
    for job in of_kind("RayJob", resources):
        bare = {"metadata": {}, "spec": {"containers": [{"name": "submitter", "image": "bare"}]}}
        made.append(Pod("submitter", job["spec"].get("submitterPodTemplate", bare)))
    return made


def every_pod() -> Iterator[tuple[str, Pod]]:
    for names, resources in combinations().items():
        for pod in pods_of(resources):
            yield f"{'+'.join(names)}: {pod.name}", pod


def refusals(spec: Spec) -> list[str]:
    """What the Pod Security level `restricted` refuses of a pod."""
    found = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    kinds = {key for volume in spec.get("volumes", []) for key in volume if key != "name"}
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "projected", "secret"}
    found += sorted(kinds - allowed - {"persistentVolumeClaim"})
    of_pod = spec.get("securityContext", {})
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        own = container.get("securityContext", {})
        both = {**of_pod, **own}
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "capabilities": capabilities.get("drop") != ["ALL"]
            or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": both.get("runAsNonRoot") is not True,
            "runAsUser": both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "hostPort": any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [f"{container['name']}: {key}" for key, is_wrong in wrong.items() if is_wrong]
    return found


def test_restricted_takes_every_pod_with_the_user_of_the_image() -> None:
    dockerfile = (ROOT / "infra" / "docker" / "Dockerfile").read_text()
    assert f"useradd --uid {UID} " in dockerfile
    for name, pod in every_pod():
        assert refusals(pod.spec) == [], name
        assert pod.spec["securityContext"]["runAsUser"] == UID, name
        assert all(
            container["securityContext"].get("runAsUser", UID) == UID
            for container in pod.containers
        ), name
        # The group may read the token of a role, which the kubelet mounts.
        assert pod.spec["securityContext"]["fsGroup"] == UID, name


def test_restricted_refuses_pods_without_each_of_the_settings() -> None:
    """Pins the check itself: KubeRay's defaults and each setting that is left out are refused."""
    job = combinations()["job",]
    assert all(refusals(pod.spec) == [] for pod in pods_of(job))
    bare = copy.deepcopy(job)
    (found,) = of_kind("RayJob", bare)
    del found["spec"]["submitterPodTemplate"]
    assert len(refusals(pods_of(bare)[-1].spec)) == 4
    bare = copy.deepcopy(job)
    del cluster_of(bare)["autoscalerOptions"]["securityContext"]
    assert refusals(pods_of(bare)[0].spec) == [
        "autoscaler: allowPrivilegeEscalation", "autoscaler: capabilities",
    ]  # fmt: skip
    for key in ("allowPrivilegeEscalation", "capabilities"):
        bare = copy.deepcopy(job)
        first = cluster_of(bare)["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
        del first["securityContext"][key]
        assert refusals(pods_of(bare)[1].spec) == [f"ray-worker: {key}", f"wait-gcs-ready: {key}"]


def test_all_manifests_with_pods_are_rendered() -> None:
    """Pins that a new manifest or component cannot escape these tests."""
    for overlay in OVERLAYS:
        (kustomization,) = documents(KUBERAY / "overlays" / overlay / "kustomization.yaml")
        named = [Path(name).name for name in kustomization["components"]]
        assert tuple(named) in combinations(), f"{overlay}: no combination {named}"
        # Components that a comment offers are in the right order too.
        text = (KUBERAY / "overlays" / overlay / "kustomization.yaml").read_text()
        offered = re.findall(r"^  (?:# )?- ../../components/(\S+)", text, re.MULTILINE)
        assert tuple(offered) in combinations(), f"{overlay}: no combination {offered}"
    components = {path.name for path in (KUBERAY / "components").iterdir()}
    assert components == {*OPTIONAL, *(name for names in ACCESS for name in names)}
    for path in (ROOT / "infra").rglob("*.y*ml"):
        inside = path.is_relative_to(KUBERAY)
        assert inside or "containers:" not in path.read_text(), f"{path} has pods"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubectl_renders_the_same(overlay: str) -> None:
    folder = KUBERAY / "overlays" / overlay
    output = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, check=True)
    made = list(yaml.load_all(output.stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    def key(one: Document) -> tuple[str, str]:
        return one["kind"], one["metadata"]["name"]

    assert sorted(made, key=key) == sorted(rendered(folder), key=key)


def test_each_overlay_is_what_its_name_says() -> None:
    groups = {}
    for overlay in OVERLAYS:
        resources = rendered(KUBERAY / "overlays" / overlay)
        groups[overlay] = [
            group["groupName"] for group in cluster_of(resources)["workerGroupSpecs"]
        ]
        images = {container["image"] for pod in pods_of(resources) for container in pod.containers}
        assert images <= {"REGISTRY/curate:cpu", "REGISTRY/curate:gpu"}
        is_job = bool(of_kind("RayJob", resources))
        assert is_job == (overlay == "job")
        assert bool(of_kind("RayCluster", resources)) != is_job
        text = (KUBERAY / "overlays" / overlay / "kustomization.yaml").read_text()
        # What users must edit is marked.
        assert re.search(r"newName: REGISTRY/curate\} # CHANGE", text)
        assert re.search(r"components/eks # CHANGE", text)
    both = ["cpu", "gpu"]
    assert groups == {"cpu": ["cpu"], "gpu": both, "spot": both, "job": both}


def test_a_job_runs_on_the_same_cluster() -> None:
    for names, resources in combinations().items():
        if "job" in names:
            permanent = combinations()[tuple(name for name in names if name != "job")]
            assert cluster_of(resources) == cluster_of(permanent)


def test_the_cluster_grows_from_zero_and_the_head_does_no_work() -> None:
    for resources in combinations().values():
        spec = cluster_of(resources)
        assert spec["enableInTreeAutoscaling"] is True
        assert spec["autoscalerOptions"]["idleTimeoutSeconds"] > 0
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        for group in spec["workerGroupSpecs"]:
            assert group["minReplicas"] == group["replicas"] == 0 < group["maxReplicas"]
        # Ray is that of the images.
        assert spec["rayVersion"] == version("ray")
        assert spec["authOptions"]["mode"] == "token"
    constraints = (ROOT / "constraints.txt").read_text()
    assert re.search(rf"^ray=={version('ray')} ", constraints, re.M)


def bytes_of(quantity: str) -> int:
    return int(quantity.removesuffix("Gi")) * GIB


def test_every_container_requests_cores_memory_and_disk() -> None:
    for name, pod in every_pod():
        for container in pod.spec["containers"]:
            limits, requests = (container["resources"][key] for key in ("limits", "requests"))
            for key in ("cpu", "memory", "ephemeral-storage"):
                assert key in limits, f"{name}: {key}"
                assert key in requests, f"{name}: {key}"
            assert requests["memory"] == limits["memory"], name


def test_workers_have_memory_and_disk_for_each_core() -> None:
    for resources in combinations().values():
        spec = cluster_of(resources)
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            (container,) = group["template"]["spec"]["containers"]
            limits = container["resources"]["limits"]
            # A worker takes a core and about 2 GiB of what the object store leaves.
            store_bytes = int(group["rayStartParams"]["object-store-memory"])
            memory_bytes = bytes_of(limits["memory"]) - store_bytes
            assert memory_bytes / int(limits["cpu"]) >= 3 * GIB
            disk_bytes = bytes_of(limits["ephemeral-storage"])
            assert disk_bytes >= int(limits["cpu"]) * MAX_FILE_BYTES


def test_no_pod_needs_keys_and_only_the_head_may_call_kubernetes() -> None:
    """Pins one account for all pods, to which a role is given; a Secret with keys may be absent."""
    for resources in combinations().values():
        (account,) = of_kind("ServiceAccount", resources)
        assert account["automountServiceAccountToken"] is False
    for name, pod in every_pod():
        assert pod.spec["serviceAccountName"] == account["metadata"]["name"], name
        # KubeRay gives the head's account the rights of the autoscaler.
        assert pod.spec["automountServiceAccountToken"] is (pod.name == "head"), name
        for container in pod.spec["containers"]:
            for source in container.get("envFrom", ()):
                assert source["secretRef"].get("optional") is True, name
            assert not any("valueFrom" in entry for entry in container.get("env", ())), name


def test_roles_are_annotations_of_the_account() -> None:
    keys = {"eks": "eks.amazonaws.com/role-arn", "gke": "iam.gke.io/gcp-service-account"}
    for component, key in keys.items():
        (account,) = of_kind("ServiceAccount", combinations()[component,])
        assert set(account["metadata"]["annotations"]) == {key}
        text = (KUBERAY / "components" / component / "kustomization.yaml").read_text()
        assert re.search(rf"{key}: .* # CHANGE", text)


def test_pods_end_after_what_stops_in_them() -> None:
    """Pins that Kubernetes kills no pod before the run, the worker and Ray ended by themselves."""
    from ray._private.ray_constants import RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S as DRAIN_S

    for name, pod in every_pod():
        grace_s = pod.spec["terminationGracePeriodSeconds"]
        if pod.name == "head":
            (head, _) = pod.spec["containers"]
            variables = {entry["name"]: entry["value"] for entry in head["env"]}
            stop_s = int(variables["RAY_JOB_STOP_WAIT_TIME_S"])
            # The longest end of an interrupted run that was measured took 17 s.
            assert stop_s >= 60
            assert grace_s > stop_s + DRAIN_S, name
        elif pod.name != "submitter":
            assert grace_s > DRAIN_S + STORE_S, name


UNSHARE = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]


def can_unshare() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_unshare(), reason="the kernel allows no namespace of processes")
def test_the_head_ends_its_run_before_ray(tmp_path: Path) -> None:
    """Runs the hook of the head beside a run and another program, which it must not signal."""
    (hook,) = {
        tuple(pod.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"])
        for _, pod in every_pod()
        if pod.name == "head"
    }
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.3)\n"
        "    pathlib.Path(sys.argv[2]).write_text('ended')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path(sys.argv[2]).write_text('runs')\n"
        "time.sleep(60)\n"
    )
    paths = {}
    for name in ("curate", "other"):
        (tmp_path / name).write_text(program)
        paths[name] = tmp_path / f"{name}.state"
    # As a job's entry point is started: a shell with the command line, and a script by its Python.
    starts = [
        f"/bin/sh -c '{sys.executable} {tmp_path / name} run {path}; true' &"
        for name, path in paths.items()
    ]
    waits = [f"until [ -s {path} ]; do sleep 0.05; done" for path in paths.values()]
    script = "\n".join([*starts, *waits, shlex.join(hook), f"cat {paths['curate']}"])
    begun = time.monotonic()
    done = subprocess.run(
        [*UNSHARE, "bash", "-c", script], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("ended", "")
    assert paths["other"].read_text() == "runs"
    assert time.monotonic() - begun < 20


def test_a_job_resumes_and_removes_its_cluster() -> None:
    for resources in combinations().values():
        for job in of_kind("RayJob", resources):
            spec = job["spec"]
            assert spec["backoffLimit"] > 0
            assert spec["shutdownAfterJobFinishes"] is True
            # KubeRay takes retries only in the default mode, and a template only there.
            assert "clusterSelector" not in spec
            assert "submissionMode" not in spec
            assert spec["submitterPodTemplate"]["spec"]["restartPolicy"] == "Never"
            command, *arguments = shlex.split(spec["entrypoint"])
            assert command == "curate"
            options = make_parser().parse_args(arguments)
            assert options.max_failed == 1
            host, port = options.metrics
            assert host == "0.0.0.0"
            assert ports(pods_of(resources)[0])["curate"] == port


def ports(pod: Pod) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in pod.spec["containers"]
        for port in container.get("ports", ())
    }


def test_gpu_pods_are_where_gpus_are_with_their_video_engines() -> None:
    for name, pod in every_pod():
        (container, *_) = pod.spec["containers"]
        limits = container["resources"]["limits"]
        assert ("nvidia.com/gpu" in limits) == (pod.name == "gpu"), name
        assert container["image"].endswith(":gpu") == (pod.name == "gpu"), name
        if pod.name == "gpu":
            assert "nvidia.com/gpu.present" in pod.spec["nodeSelector"], name
            tolerated = {one["key"] for one in pod.spec["tolerations"]}
            assert "nvidia.com/gpu" in tolerated, name
            variables = {entry["name"]: entry["value"] for entry in container["env"]}
            assert "video" in variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")


SPOT_NODES = (
    {"eks.amazonaws.com/capacityType": "SPOT"},
    {"karpenter.sh/capacity-type": "spot"},
    {"cloud.google.com/gke-spot": "true"},
    {"kubernetes.azure.com/scalesetpriority": "spot"},
)
OTHER_NODES: tuple[dict[str, str], ...] = (
    {},
    {"eks.amazonaws.com/capacityType": "ON_DEMAND"},
    {"karpenter.sh/capacity-type": "on-demand"},
    {"kubernetes.azure.com/scalesetpriority": "regular"},
)


def takes(spec: Spec, labels: Mapping[str, str]) -> bool:
    """Whether a pod's affinity allows a node with these labels."""

    def holds(rule: Mapping[str, Any]) -> bool:
        value, values = labels.get(rule["key"]), rule.get("values", ())
        return {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[rule["operator"]]

    if "affinity" not in spec:
        return True
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return any(all(map(holds, term["matchExpressions"])) for term in required["nodeSelectorTerms"])


def test_spot_nodes_take_workers_and_not_the_head() -> None:
    for names, resources in combinations().items():
        for pod in pods_of(resources):
            if "spot" not in names or pod.name == "submitter":
                assert "affinity" not in pod.spec
                continue
            is_worker = pod.name != "head"
            assert {takes(pod.spec, node) for node in SPOT_NODES} == {is_worker}, pod.name
            assert {takes(pod.spec, node) for node in OTHER_NODES} == {not is_worker}, pod.name
            tolerated = {one["key"] for one in pod.spec.get("tolerations", ())}
            clouds = {"cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"}
            assert (clouds <= tolerated) == is_worker, pod.name


def test_autoscalers_of_nodes_do_not_move_the_head() -> None:
    for name, pod in every_pod():
        if pod.name == "head":
            annotations = pod.template["metadata"]["annotations"]
            assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false", name
            assert annotations["karpenter.sh/do-not-disrupt"] == "true", name


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", ())
    )


Peer = Mapping[str, str] | str
"""Labels of a pod, or an address outside of the cluster."""


def allows(
    resources: Iterable[Document],
    labels: Mapping[str, str],
    direction: str,
    peer: Peer,
    port: int | str,
    *,
    is_own_namespace: bool = False,
    protocol: str = "TCP",
) -> bool:
    """Whether the network rules let a pod with `labels` connect to a peer, or be reached by it."""

    def is_peer(rule: Mapping[str, Any]) -> bool:
        if "ipBlock" in rule:
            block = ipaddress.ip_network(rule["ipBlock"]["cidr"])
            return isinstance(peer, str) and ipaddress.ip_address(peer) in block
        if isinstance(peer, str) or not (is_own_namespace or "namespaceSelector" in rule):
            return False
        return matches(rule.get("podSelector", {}), peer)

    def has_port(rule: Mapping[str, Any]) -> bool:
        return any(one == {"protocol": protocol, "port": port} for one in rule.get("ports", ()))

    side = {"Ingress": "from", "Egress": "to"}[direction]
    policies = [
        one["spec"]
        for one in of_kind("NetworkPolicy", resources)
        if direction in one["spec"]["policyTypes"] and matches(one["spec"]["podSelector"], labels)
    ]
    assert policies, f"no network rule selects {labels}"
    return any(
        any(map(is_peer, rule[side])) and ("ports" not in rule or has_port(rule))
        for policy in policies
        for rule in policy.get(direction.lower(), ())
    )


def test_network_rules_let_only_the_cluster_reach_ray() -> None:
    operator, prometheus, stranger = (
        {"app.kubernetes.io/name": name} for name in ("kuberay-operator", "prometheus", "other")
    )
    storage, metadata = "52.216.1.1", "169.254.169.254"
    for names, resources in combinations().items():
        for pod in pods_of(resources):
            labels = pod.template["metadata"]["labels"]
            assert labels.items() >= PART.items(), pod.name

            def is_reached(
                by: Peer, port: int | str, *, own: bool = False, pod: Mapping[str, str] = labels
            ) -> bool:
                return allows(resources, pod, "Ingress", by, port, is_own_namespace=own)  # noqa: B023

            def reaches(
                peer: Peer,
                port: int,
                *,
                own: bool = False,
                protocol: str = "TCP",
                pod: Mapping[str, str] = labels,
            ) -> bool:
                return allows(
                    resources,  # noqa: B023
                    pod, "Egress", peer, port, is_own_namespace=own, protocol=protocol,
                )  # fmt: skip

            # Ray's ports, chosen ones too, within the cluster alone.
            for port in (6379, 8265, 10002, 45678):
                assert is_reached(PART, port, own=True)
                assert reaches(PART, port, own=True)
                assert not is_reached(stranger, port, own=True)
                assert not is_reached(PART, port), "another namespace may have such pods"
                assert not is_reached(storage, port)
            assert is_reached(operator, "dashboard")
            assert not is_reached(operator, 6379)
            for name in ("metrics", "curate"):
                assert is_reached(prometheus, name)
                assert not is_reached(stranger, name)
            assert not is_reached(prometheus, "dashboard")
            for protocol in ("UDP", "TCP"):
                assert reaches({"k8s-app": "kube-dns"}, 53, protocol=protocol)
            assert reaches(storage, 443)
            assert reaches("2600:1fa0::1", 443)
            assert not reaches(storage, 80)
            assert not reaches(storage, 22)
            # The machine's own role is out of reach; GKE's metadata server gives the pod's role.
            assert reaches(metadata, 80) == ("gke" in names)
            head = {**labels, "ray.io/node-type": "head"}
            assert reaches("10.0.0.1", 6443, pod=head)
            assert not reaches("10.0.0.1", 6443)


def test_prometheus_scrapes_ports_that_pods_have() -> None:
    for names, resources in combinations().items():
        monitors = of_kind("PodMonitor", resources)
        assert len(monitors) == ("prometheus" in names)
        for monitor in monitors:
            pods = pods_of(resources)
            selector = monitor["spec"]["selector"]
            assert all(matches(selector, pod.template["metadata"]["labels"]) for pod in pods)
            scraped = [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]]
            assert scraped == ["metrics", "curate"]
            by_name = {pod.name: set(scraped) & set(ports(pod)) for pod in pods}
            assert by_name.pop("head") == {"metrics", "curate"}
            assert by_name.pop("submitter", set()) == set()
            assert set(map(frozenset, by_name.values())) == {frozenset({"metrics"})}


def keys(*named: str, **described: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these keys and no others."""
    return {
        "type": "object",
        "properties": {**{key: {} for key in named}, **described},
        "additionalProperties": False,
    }


def every(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


NUMBER, TEXT, FLAG = {"type": "integer"}, {"type": "string"}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
RIGHTS = keys(
    capabilities=keys(drop=every(TEXT)), seccompProfile=keys(type=TEXT), runAsNonRoot=FLAG,
    allowPrivilegeEscalation=FLAG, runAsUser=NUMBER, runAsGroup=NUMBER, fsGroup=NUMBER,
)  # fmt: skip
RESOURCES = keys(limits=TEXTS, requests=TEXTS)
CONTAINER = keys(
    "lifecycle", name=TEXT, image=TEXT, resources=RESOURCES, securityContext=RIGHTS,
    env=every(keys(name=TEXT, value=TEXT)),
    envFrom=every(keys(secretRef=keys(name=TEXT, optional=FLAG))),
    ports=every(keys(name={"type": "string", "maxLength": 15}, containerPort=NUMBER)),
)  # fmt: skip
TEMPLATE = keys(
    metadata=keys(labels=TEXTS, annotations=TEXTS),
    spec=keys(
        "affinity", containers=every(CONTAINER), initContainers=every(CONTAINER),
        serviceAccountName=TEXT, automountServiceAccountToken=FLAG, securityContext=RIGHTS,
        terminationGracePeriodSeconds=NUMBER, nodeSelector=TEXTS, restartPolicy=TEXT,
        tolerations=every(keys(key=TEXT, operator=TEXT, value=TEXT, effect=TEXT)),
    ),
)  # fmt: skip
CLUSTER = keys(
    rayVersion=TEXT, enableInTreeAutoscaling=FLAG, authOptions=keys(mode=TEXT),
    autoscalerOptions=keys(
        version=TEXT, idleTimeoutSeconds=NUMBER, securityContext=RIGHTS, resources=RESOURCES
    ),
    headGroupSpec=keys(rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs=every(
        keys(
            groupName=TEXT, minReplicas=NUMBER, maxReplicas=NUMBER, replicas=NUMBER,
            rayStartParams=TEXTS, template=TEMPLATE,
        )
    ),
)  # fmt: skip
JOB = keys(
    entrypoint=TEXT, backoffLimit=NUMBER, shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=NUMBER, submitterPodTemplate=TEMPLATE, rayClusterSpec=CLUSTER,
)  # fmt: skip


def test_manifests_have_the_keys_and_types_of_kubernetes() -> None:
    """Pins spelling and types with the few keys that are used; whole schemas are used below."""
    checks = {
        "RayCluster": jsonschema.Draft202012Validator(CLUSTER),
        "RayJob": jsonschema.Draft202012Validator(JOB),
    }
    for resources in combinations().values():
        (one,) = [one for one in resources if one["kind"] in checks]
        assert one["apiVersion"] == "ray.io/v1"
        checks[one["kind"]].validate(one["spec"])


def test_kubernetes_takes_the_manifests() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    distinct = {}
    for resources in combinations().values():
        for one in resources:
            if one["apiVersion"] in ("v1", "networking.k8s.io/v1"):
                distinct[yaml.dump(one)] = one
        for pod in pods_of(resources):
            whole = {"apiVersion": "v1", "kind": "Pod", **pod.template}
            whole["metadata"] = {"name": pod.name, **pod.template["metadata"]}
            distinct[yaml.dump(whole)] = whole
    newest = kubernetes_validate.latest_version()
    for one in distinct.values():
        kubernetes_validate.validate(one, newest, strict=True)
    wrong = {**one, "spec": {**one["spec"], "serviceAccount_name": "x"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, newest, strict=True)


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


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_kuberay_takes_the_manifests(kind: str) -> None:
    folder = os.environ.get("KUBERAY_CRDS")
    if folder is None:
        pytest.skip("KUBERAY_CRDS does not name the folder with KubeRay's definitions")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load((Path(folder) / f"ray.io_{kind.lower()}s.yaml").read_text(), loader)
    (served,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    schema = strict(served["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    check = jsonschema.Draft202012Validator(schema)
    manifests = [one for made in combinations().values() for one in of_kind(kind, made)]
    for one in {yaml.dump(one["spec"]): one for one in manifests}.values():
        check.validate(one)
        for wrong in ({"workerGroupSpec": []}, {"backoff_limit": 1}):
            assert not check.is_valid({**one, "spec": {**one["spec"], **wrong}})
