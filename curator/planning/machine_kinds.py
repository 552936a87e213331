"""The kinds of machines of a plan, and what a run takes and costs on each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from curator.errors import UsageError, unknown_key
from curator.strict_yaml import StrictYamlError, load_yaml

BUSY_SHARE = 0.9
"""Share of the time in which workers work: units do not all end at once."""


class MachineKind(BaseModel):
    """A kind of machine; docs/plan.md says what the keys mean. Prices are in any currency."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    cpus: float = Field(gt=0)
    gpus: float = Field(0, ge=0)
    memory_gb: float | None = Field(None, gt=0)
    count: int = Field(1, ge=1)
    price_per_hour: float | None = Field(None, ge=0)
    speed: float = Field(1.0, gt=0)
    gpu_speed: float = Field(1.0, gt=0)
    price_per_1000_requests: float = Field(0.0, ge=0)
    price_per_gb: float = Field(0.0, ge=0)


def read_machines(path: str) -> list[MachineKind]:
    """Reads a YAML or JSON list of machines.

    Raises:
        UsageError: It cannot be read, or a key is wrong; names the machine and the key.
    """
    try:
        rows = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, StrictYamlError) as error:
        raise UsageError(f"--machines {path!r} cannot be read: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"--machines {path!r}: expected a list of machines, each with name, cpus")
    kinds = []
    for number, row in enumerate(rows, 1):
        try:
            kinds.append(MachineKind.model_validate(row))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "machine"
            what = f"{key}: {first['msg']}"
            if first["type"] == "extra_forbidden":
                what = unknown_key(key, MachineKind.model_fields, "key")
            raise UsageError(f"--machines {path!r}, machine {number}: {what}") from error
    return kinds


def cost(kind: MachineKind, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Returns hours, memory and money of a plan on some machines, or why they cannot run it."""
    workers, gpu_s = int(max(1, kind.cpus)), plan["gpu_s"] or 0.0
    if kind.memory_gb is not None:
        free_bytes = kind.memory_gb * 1e9 - plan["driver_bytes"]
        workers = min(workers, int(free_bytes // plan["worker_bytes"]))
    row: dict[str, Any] = {"name": kind.name, "machines": kind.count, "workers": workers}
    if workers < 1:
        return row | {"problem": "too little memory for a worker"}
    if gpu_s and not kind.gpus:
        return row | {"problem": "has no GPU, and the sample ran on one"}
    cores = kind.count * min(workers, kind.cpus) * kind.speed * BUSY_SHARE
    gpus = kind.count * kind.gpus * kind.gpu_speed * BUSY_SHARE
    on_gpu_s = gpu_s / gpus if gpu_s else 0.0
    serial_s = plan["cpu_s_by_part"]["driver"] / kind.speed
    hours = {
        end: (max(cpu_s / cores, on_gpu_s) + serial_s) / 3600
        for end, cpu_s in plan["cpu_s"].items()
    }
    n_bytes = plan["driver_bytes"] + workers * plan["worker_bytes"]
    row |= {"hours": hours, "memory_bytes": n_bytes}
    if kind.price_per_hour is not None:
        s3, per_hour = plan["s3"], kind.price_per_hour * kind.count
        moved = kind.price_per_1000_requests * (s3["requests_from"] + s3["requests_to"]) / 1000
        moved += kind.price_per_gb * (s3["bytes_from"] + s3["bytes_to"]) / 1e9
        row["money"] = {end: per_hour * number + moved for end, number in hours.items()}
    return row
