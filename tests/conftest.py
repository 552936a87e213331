"""Fixtures that several test folders share."""

import gc
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import md5
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

# Before torch is imported: threads of several test processes would wait for cores, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from command_line import curate as curate
from fake_azure import azure_server
from kept_sandbox import KeptSandbox, code_now, remembering, remembering_matches
from sandbox_nursery import Forking, sees_no_shots

from curator import extensions
from curator.executor import engine, sandboxed_process
from curator.executor.ray_cluster import use_own_token
from curator.executor.sandbox import _has_packages as has_packages
from curator.executor.sandboxed_process import SandboxedProcess, process_sandbox
from curator.matching.verify_pair import verify_pair
from curator.stages.dedup import near_duplicates
from curator.storage import source_reader
from curator.storage.object_service import service_named
from curator.tools.report import contact_sheets

# Ray's native code reads the token once a process, at its import, which any test may cause.
use_own_token()
# Python 3.11 forks while a thread that ends may hold the lock of all threads, and the child then
# waits forever: on busy cores, such a thread gets time to let it go.
os.register_at_fork(before=lambda: time.sleep(0.01))
# Imports and the collection of tests make a million objects, and all of them stay.
gc.disable()


_HEAVY = ("tools/removal", "runs", "executor", "examples", "faults", "models", "loading", "infra")
"""Folders whose files take longest. They come first, so that no process ends with a long file."""
_TOGETHER = (
    "tests/tools/removal/", "tests/runs/test_captions_run", "tests/runs/test_captions_killed",
    "tests/runs/test_recaptioning",
)  # fmt: skip
"""Beginnings of files that share a finished run: one process of those of xdist has them all."""


def pytest_configure(config: pytest.Config) -> None:
    """Lets each process of xdist begin to collect at another file.

    In a fresh clone, a process then rewrites the assertions of a share of the files, and finds the
    bytecode of the others.
    """
    process = getattr(config, "workerinput", None)
    if process is None or config.args != config.getini("testpaths"):
        return
    files = sorted(str(path) for path in Path(__file__).parent.rglob("test_*.py"))
    begin = len(files) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
    config.args[:] = files[begin:] + files[:begin]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files of heavy folders first; the tests of a file stay in their order.

    Python looks for no garbage among what is there by now, the million objects of modules.
    """
    gc.freeze()
    # By default, the parse trees of one module cause a hundred collections.
    gc.set_threshold(10_000, 20, 10)
    gc.enable()
    tests = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, str]:
        path = item.path.relative_to(tests).as_posix()
        heavy = (n for n, name in enumerate(_HEAVY) if path.startswith(name))
        return next(heavy, len(_HEAVY)), path

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:  # noqa: ANN401
    """Gives files to processes as xdist does, but those of `_TOGETHER` to one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(_TOGETHER):
                return nodeid.split("/")[1]
            return str(super()._split_scope(nodeid))

    return Together(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a GPU where there is none, or fails it if that was asked for."""
    if item.get_closest_marker("needs_gpu") is None or _has_gpu():
        return
    if os.environ.get("FAIL_WITHOUT_GPU") == "1":
        pytest.fail("FAIL_WITHOUT_GPU=1, and no GPU is here", pytrace=False)
    pytest.skip("no GPU")


@cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture
def unsandboxed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets stages decode in this process: for tests that replace a part of them."""
    from curator.sample_frames import SampleFramesStage
    from curator.stages.analyze.stage import AnalyzeStage, PlanStage
    from curator.stages.cut.stage import CutStage
    from curator.stages.scan.stage import ScanStage

    for stage in (ScanStage, PlanStage, AnalyzeStage, CutStage, SampleFramesStage):
        monkeypatch.setattr(stage, "sandboxed", False)


@pytest.fixture(autouse=True, scope="session")
def _not_racy() -> Iterator[None]:
    """Lets files that a test has just written count as old, so that they are probed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_reader, "RACY_NS", 0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _not_synced() -> Iterator[None]:
    """Lets the kernel write files when it likes: tests sync thousands, and no power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _few_cards() -> Iterator[None]:
    """Lets pages of large runs show fewer clips: a page of 360 cards takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contact_sheets, "MAX_CARDS", 60)
        yield


@pytest.fixture(autouse=True, scope="session")
def _distributions_read_once() -> Iterator[None]:
    """Lets all custom classes of a process share one list of what installed packages contain."""

    @cache
    def read(folders: tuple[str, ...]) -> Mapping[str, list[str]]:
        return packages_distributions()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            extensions,
            "distributions_of_packages",
            lambda: read(tuple(path for path in sys.path if has_packages(path))),
        )
        yield


@pytest.fixture(autouse=True, scope="module")
def _shot_network_of_the_file(_kept_sandbox: None) -> None:
    """Ends a sandbox with the other network: what starts one without a run asks for none."""
    if _NETWORKS[-1] != sees_no_shots():
        process_sandbox().stop()
        _NETWORKS.append(sees_no_shots())


_NETWORKS = [False]


@pytest.fixture(autouse=True, scope="session")
def _kept_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets runs of this process have one sandboxed process; equal films and pairs are done once."""
    kept, forking = KeptSandbox(), Forking()
    own = tmp_path_factory.getbasetemp()
    tracks = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "analyzed-films"
    tracks.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "process_sandbox", lambda: kept)
        patch.setattr(sandboxed_process, "subprocess", forking)
        patch.setattr(sandboxed_process, "importable_code", code_now)
        patch.setattr(SandboxedProcess, "process", remembering(SandboxedProcess.process, tracks))
        patch.setattr(near_duplicates, "verify_pair", remembering_matches(verify_pair))
        yield
    process_sandbox().stop()
    forking.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Address of an S3 server that lives as long as the tests."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a new, empty bucket; the environment leads boto3 to its server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return _new_bucket()


@pytest.fixture
def gs_bucket(s3_bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a new bucket of `gs://`: Google's XML interface is one that an S3 server answers."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication

    account = {"gcs_base_url": s3_endpoint, "disable_oauth": True, "client_email": "",
               "private_key": "", "private_key_id": ""}  # fmt: skip
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    answer = DomainDispatcherApplication.__call__

    etags: dict[str, str] = {}

    def with_name(self: object, environ: dict[str, str], begin: Callable[..., object]) -> object:
        if not environ.get("HTTP_AUTHORIZATION", "").startswith("AWS4"):
            scope = "test/20250101/us-east-1/s3/aws4_request"
            environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 Credential={scope}, Signature=0"
        generation = environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        if generation == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        elif generation is not None:
            environ["HTTP_IF_MATCH"] = etags[generation]

        def with_generation(
            status: str, headers: Iterable[tuple[str, str]], *rest: object
        ) -> object:
            found = list(headers)
            for etag in [value for name, value in found if name.lower() == "etag"]:
                number = str(int(md5(etag.encode()).hexdigest()[:12], 16))
                etags[number] = etag
                found.append(("x-goog-generation", number))
            return begin(status, found, *rest)

        return answer(self, environ, with_generation)

    monkeypatch.setattr(DomainDispatcherApplication, "__call__", with_name)
    service_named.cache_clear()
    # moto does not decode the name of a bucket, of which obstore encodes all but letters.
    return _new_bucket("curatetest")


@pytest.fixture
def az_container(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of an empty container of `az://`: a server with the few requests that are made.

    With `CURATE_TEST_AZ`, a folder in the container of this name, on the server of the environment.
    """
    if container := os.environ.get("CURATE_TEST_AZ"):
        service_named.cache_clear()
        yield f"{container}/{secrets.token_hex(4)}"
        return
    with azure_server() as endpoint:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        service_named.cache_clear()
        yield "films"


@pytest.fixture
def real_s3_bucket() -> Iterator[str]:
    """Name of a new bucket on the server that the environment names; see the mark `needs_s3`."""
    from curator.storage.s3_client import client

    if not os.environ.get("AWS_ENDPOINT_URL"):
        pytest.skip("no S3 server: set AWS_ENDPOINT_URL and credentials")
    bucket = _new_bucket()
    yield bucket
    for page in client().get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", ()):
            client().delete_object(Bucket=bucket, Key=item["Key"])
    client().delete_bucket(Bucket=bucket)


def _new_bucket(prefix: str = "curate-test-") -> str:
    from curator.storage.s3_client import client

    bucket = f"{prefix}{secrets.token_hex(4)}"
    client().create_bucket(Bucket=bucket)
    return bucket
