"""`curate view`: a local page to look at clips, mark them, and try other bounds."""

import argparse
import secrets
import socket

from curator.commands.arguments import EXIT_OK, add_memory, add_snapshot
from curator.errors import UsageError, install_extra

HELP = "look at the clips of a run in a browser, mark them, and try other bounds"
PORT = 8787


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves a page over a finished run, to this machine alone. Marks are stored in OUT; "
        "nothing else is changed."
    )
    parser.add_argument("out", metavar="OUT", help="folder or s3://bucket/prefix of a run")
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="N",
        help=f"where it listens on 127.0.0.1; 0 for any free port (default: {PORT})",
    )  # fmt: skip
    add_snapshot(parser)
    add_memory(parser)


def main(options: argparse.Namespace) -> int:
    try:
        from curator.view.view_server import make_app, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UsageError(f"`curate view` needs {error.name}: {install_extra('view')}") from error
    from curator.review.finished_run import open_finished
    from curator.view.viewed_run import ViewedRun

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", options.port))
    except OSError as error:
        raise UsageError(
            f"port {options.port} of 127.0.0.1 is not free: {error.strerror}; choose another one "
            "with --port, or --port 0"
        ) from error
    listener.listen()
    port = listener.getsockname()[1]
    finished = open_finished(options.out, options.snapshot, memory_bytes=options.memory)
    token = secrets.token_urlsafe(24)
    app = make_app(ViewedRun(finished), token=token, port=port)
    address = f"http://127.0.0.1:{port}/?token={token}"
    print(f"{address}\nCtrl-C ends it", flush=True)
    serve(app, listener)
    return EXIT_OK


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a port, 0 to 65535")
    return int(text)
