"""What an export to a folder of MP4s transfers: the first, the same again, others that reuse it.

    python benchmarks/export_transfer.py [--clips 100] [--mb 4] [--s3]

`--s3` starts a simulated server (moto), over plain HTTP. Clips are random bytes, because an export
decodes none.
"""

import hashlib
import os
import random
import tempfile
import time
from dataclasses import replace

import tests_path  # noqa: F401
from made_samples import made_clips, make_shards
from measure import arguments, tell

from curator.export import export
from curator.storage.base import TRAFFIC

STEPS: dict[str, tuple[str, dict[str, object]]] = {
    "first": ("a", {}),
    "again": ("a", {}),
    "--reuse": ("b", {"reuse": "a"}),
    "--in-place --reuse": ("c", {"reuse": "a", "in_place": True}),
    "--in-place": ("d", {"in_place": True}),
}


def main() -> None:
    """Runs the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--clips", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--mb", type=float, default=4.0, help="of a clip (default: %(default)s)")
    parser.add_argument("--s3", action="store_true", help="from and to a simulated S3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = _simulated() if options.s3 else folder
        _make(f"{root}/out", options.clips, int(options.mb * 1e6))
        rows = [_row(root, step) for step in STEPS]
    print("| step | s | MB received | MB sent | requests | linked |\n|---|---|---|---|---|---|")
    for step, row in zip(STEPS, rows, strict=True):
        print(f"| {step} | " + " | ".join(str(value) for value in row.values()) + " |")
    about = {"clips": options.clips, "mb": options.mb, "s3": options.s3}
    tell(about | {"steps": dict(zip(STEPS, rows, strict=True))})


def _row(root: str, step: str) -> dict[str, float]:
    to, options = STEPS[step]
    if "reuse" in options:
        options = options | {"reuse": f"{root}/{options['reuse']}"}
    TRAFFIC.clear()
    begun = time.perf_counter()
    done = export(f"{root}/out", f"{root}/{to}", "folder", options=options)
    return {
        "s": round(time.perf_counter() - begun, 2),
        "received_mb": round(TRAFFIC["received_bytes"] / 1e6, 1),
        "sent_mb": round(TRAFFIC["sent_bytes"] / 1e6, 1),
        "requests": TRAFFIC["requests"],
        "linked": done.n_linked,
    }


def _make(out: str, n_clips: int, n_bytes: int) -> None:
    clips = [
        replace(
            made_clips()[number % 8],
            key=hashlib.sha256(str(number).encode()).hexdigest()[:24],
            mp4=random.Random(number).randbytes(n_bytes),
            source=f"{number:032x}",
            split="train",
            bucket="b",
        )
        for number in range(n_clips)
    ]
    make_shards(out, clips, per_shard=-(-n_clips // 4))


def _simulated() -> str:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest"}
    place = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys | place)
    from curator.storage.s3_client import client

    client().create_bucket(Bucket="bucket")
    return "s3://bucket"


if __name__ == "__main__":
    main()
