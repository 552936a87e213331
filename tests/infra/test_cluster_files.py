"""Files for clusters: Ray's launcher on AWS, and the images."""

import fnmatch
import json
import os
import re
import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
AWS = ROOT / "infra" / "aws" / "ray-cluster.yaml"
AWS_CLUSTER = yaml.safe_load(AWS.read_text())
CONSTRAINTS = ROOT / "constraints.txt"
LINES = (ROOT / "infra" / "docker" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


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


def stages() -> dict[str, list[list[str]]]:
    """Name of each stage of the Dockerfile -> its steps, with those of the stages below it."""
    made: dict[str, list[list[str]]] = {}
    for word, rest in STEPS:
        if word == "FROM":
            base, _, name = rest.split()
            made[name] = list(made.get(base, [["FROM", base]]))
        elif made:
            made[name].append([word, rest])
    return made


def test_both_images_have_one_base_the_extras_and_an_ordinary_user() -> None:
    extras = next(rest for word, rest in STEPS if word == "ARG" and rest.startswith("EXTRAS"))
    named = extras.removeprefix("EXTRAS=").split(",")
    assert {"cluster", "metrics"} <= set(named)
    assert set(named) <= set(PROJECT["project"]["optional-dependencies"])
    assert all(steps[0] == ["FROM", "${BASE}"] for steps in stages().values())
    for target in ("cpu", "gpu"):
        assert stages()[target][-1] == ["USER", "1000"]
        assert any(rest.startswith("useradd --uid 1000 ") for _, rest in stages()[target])
    settings = " ".join(rest for word, rest in stages()["gpu"] if word == "ENV")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video" in settings


def test_a_changed_source_installs_no_dependency_again() -> None:
    """Pins the order of layers: dependencies see no source, and lie below it in each image."""
    assert ["ARG", "DEVICE=cpu"] in stages()["dependencies-cpu"]
    for target in ("cpu", "gpu"):
        below = [rest for word, rest in stages()[f"dependencies-{target}"] if word == "COPY"]
        assert below == ["pyproject.toml constraints.txt ./", "infra/install_node.sh infra/"]
        above = [rest for word, rest in stages()[target] if word == "COPY"]
        assert above == [
            f"--from=dependencies-{target} /opt/curate /opt/curate", "--from=source /src /src",
        ]  # fmt: skip
        (last,) = [rest for word, rest in stages()[target] if word == "RUN" and "/opt" in rest]
        assert last.endswith(" package")


FAKE_PYTHON = """#!/bin/sh
# Stands for Python: `-m venv FOLDER` copies itself, and makes a `uv` that notes its arguments.
if [ "$2" = venv ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\necho "$@" >> "%s/asked"\n' "$3" > "$3/bin/uv"
    chmod +x "$3/bin/uv"
fi
"""


def installed(folder: Path, extras: str, step: str = "all", **environment: str) -> list[str]:
    """What `install_node.sh` asks uv to install, a line for each request."""
    (folder / "python").write_text(FAKE_PYTHON)
    (folder / "python").chmod(0o755)
    subprocess.run(
        ["sh", ROOT / "infra" / "install_node.sh", folder / "env", extras, step],
        env={**os.environ, "PYTHON": str(folder / "python"), **environment},
        check=True,
    )
    return (folder / "env" / "asked").read_text().splitlines()


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """Requirement of each package, with its condition, and its number of hashes."""
    blocks = re.split(r"^(?=\S)", path.read_text(), flags=re.MULTILINE)
    found = [block for block in blocks if "==" in block]
    return {
        block.partition("==")[0]: (block.splitlines()[0].removesuffix(" \\"), block.count("--hash"))
        for block in found
    }


def test_nodes_install_the_constraints_and_then_the_package(tmp_path: Path) -> None:
    dependencies, package = installed(tmp_path, "cluster,gpu")
    assert dependencies.endswith("-r pyproject.toml --extra cluster --extra gpu")
    assert f"-c {tmp_path}/env/constraints.txt -b constraints.txt" in dependencies
    assert package.endswith("--no-deps -b constraints.txt .")
    assert (tmp_path / "env" / "constraints.txt").read_bytes() == CONSTRAINTS.read_bytes()


def test_an_image_installs_the_two_apart(tmp_path: Path) -> None:
    (dependencies,) = installed(tmp_path, "cluster", "dependencies")
    assert "-r pyproject.toml" in dependencies
    package = installed(tmp_path, "", "package")[-1]
    assert package.endswith("--no-deps -b constraints.txt .")


def test_nodes_without_gpus_get_no_cuda(tmp_path: Path) -> None:
    """Pins the same versions for CPUs: other builds of torch, and FAISS without a GPU."""
    (dependencies,) = installed(tmp_path, "cluster,clip", "dependencies", DEVICE="cpu")
    assert dependencies.endswith(
        "-r pyproject.toml --extra cluster --extra clip faiss-cpu"
        f" --excludes {tmp_path}/env/excludes.txt --torch-backend cpu"
    )
    assert (tmp_path / "env" / "excludes.txt").read_text().split() == ["faiss-gpu"]
    before, after = locked(CONSTRAINTS), locked(tmp_path / "env" / "constraints.txt")
    changed = {name: after[name] for name in before if before[name] != after.get(name)}
    assert len(before) == len(after) > 100
    # Only the index of torch's builds for CPUs has their hashes.
    version = before["faiss-cpu"][0].partition(" ")[0]
    assert changed == {
        "torch": (before["torch"][0], 0),
        "torchvision": (before["torchvision"][0], 0),
        "faiss-cpu": (version, before["faiss-cpu"][1]),
    }
