"""Remains of removed footage are found in objects of any kind, or what holds them is named."""

import base64
import bz2
import csv
import gzip
import hashlib
import html
import io
import json
import lzma
import os
import pickle
import quopri
import random
import signal
import socket
import sqlite3
import struct
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from curator.cli import main
from curator.storage import open_store
from curator.storage.content_id import content_id
from curator.storage.s3_client import client
from curator.tables.json_objects import sealed_json, to_json
from curator.tables.removal_records import (
    LENGTHS,
    add_record,
    caption_hash,
    empty_record,
    mark_finished,
    plain_caption,
    removal_hash,
)
from curator.tables.snapshot_store import FORMAT
from curator.tools.commands.arguments import EXIT_FAILED, EXIT_OK
from curator.tools.verify import ProvenRemoved, content_search, verify_removed
from curator.tools.verify.content_search import ContentSearch

_RANDOM = random.Random(1)
CLIP = "c9cb5a5b562eb0f5e0549a08"
CAPTION = 'A red car, driven by a "happy" man, turns left (at 5:42) & stops; it\'s raining.'
PLAIN = "Two children in yellow coats walk a brown dog along the beach"
ID, SAID = CLIP.encode(), CAPTION.encode()


def box(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(data), kind) + data


def boxes(*kinds: tuple[bytes, int]) -> bytes:
    return b"".join(box(kind, _RANDOM.randbytes(n_bytes)) for kind, n_bytes in kinds)


def jpeg(shade: int) -> bytes:
    data = io.BytesIO()
    noise = np.random.default_rng(shade).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    Image.fromarray(noise).save(data, "JPEG")
    return data.getvalue()


MP4 = boxes((b"ftyp", 16), (b"moov", 300), (b"mdat", 3000))
OTHER_MP4 = boxes((b"ftyp", 16), (b"mdat", 3000), (b"moov", 300))
JPEG, OTHER_JPEG = jpeg(1), jpeg(2)
SOURCE = b"\x1a\x45\xdf\xa3" + _RANDOM.randbytes(30_000)
LARGE = b"\x1a\x45\xdf\xa3" + bytes(9 << 20)
SOURCE_IDS = [content_id(io.BytesIO(data), len(data)) for data in (SOURCE, LARGE)]


def record_of(out: Path | str) -> None:
    texts = [CAPTION, PLAIN]
    record = empty_record("clips") | {
        "n_named": 1, "n_clips": 1, "n_sources": 2,
        "sources": sorted(map(removal_hash, SOURCE_IDS)),
        "clip_ids": [removal_hash(CLIP)],
        "mp4": [hashlib.sha256(MP4).hexdigest()],
        "captions": sorted(str(caption_hash(text)) for text in texts),
        LENGTHS: sorted(len(plain_caption(text)) for text in texts),
        "pictures": [hashlib.sha256(JPEG).hexdigest()],
    }  # fmt: skip
    store = open_store(str(out))
    mark_finished(store, [add_record(store, record)])


def tar_of(*members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def gzip_named(name: str) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(name, "wb", fileobj=out) as stream:
        stream.write(b"x")
    return out.getvalue()


def csv_of(rows: Iterable[Iterable[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def zip_of(*members: tuple[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def parquet_of(column: pa.Array, **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"x": column}), out, **options)
    return out.getvalue()


def with_metadata(key: str, value: bytes) -> bytes:
    out = io.BytesIO()
    table = pa.table({"x": pa.array([1])}).replace_schema_metadata({key: value})
    pq.write_table(table, out)
    return out.getvalue()


def arrow_of(column: pa.Array, opened: Callable[..., Any], **more: object) -> bytes:
    out, table = io.BytesIO(), pa.table({"x": column})
    with opened(out, table.schema, **more) as writer:
        writer.write_table(table)
    return out.getvalue()


def npz_of(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def npy_of(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def database_of(*values: object) -> bytes:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE notes (a, b, c)")
        database.execute("INSERT INTO notes VALUES (?, ?, ?)", (1, *values))
        database.commit()
        return database.serialize()


def safetensors_of(said: dict[str, str]) -> bytes:
    head = json.dumps({"__metadata__": said, "x": {"dtype": "F32", "data_offsets": [0, 400]}})
    return struct.pack("<Q", len(head)) + head.encode() + np.arange(100, dtype="<f4").tobytes()


def png_of(said: str) -> bytes:
    from PIL.PngImagePlugin import PngInfo

    info, out = PngInfo(), io.BytesIO()
    info.add_text("comment", said)
    Image.new("RGB", (8, 8)).save(out, "PNG", pnginfo=info)
    return out.getvalue()


def exif_of(said: str) -> bytes:
    exif, out = Image.Exif(), io.BytesIO()
    exif[0x010E] = said
    Image.new("RGB", (8, 8)).save(out, "JPEG", exif=exif)
    return out.getvalue()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def wrapped(text: str, mark: str = "", width: int = 30) -> str:
    import textwrap

    return "\n".join(mark + line for line in textwrap.wrap(text, width))


def lines_of(text: str, width: int, end: str = "\n") -> str:
    return end.join(text[n : n + width] for n in range(0, len(text), width))


def padded(tar: bytes, data: bytes) -> bytes:
    return tar[:530] + data + tar[530 + len(data) :]


def plants() -> dict[str, bytes]:
    """What may remain, by the name of the object."""
    uri = f"data:image/jpeg;base64,{b64(JPEG)}"
    dashed = "-".join([SOURCE_IDS[0][:8], *(SOURCE_IDS[0][n : n + 4] for n in (8, 12, 16)),
                       SOURCE_IDS[0][20:]])  # fmt: skip
    noise = _RANDOM.randbytes(500)
    strings = pa.array([CLIP, "x"])
    plain, script = PLAIN.encode(), b"#!/bin/sh\ntail -n +4 $0 | tar xz\n"
    return {
        # Ids.
        "lines.log": b"kept\nsee " + ID.upper() + b" there\n",
        "uuid.txt": b"source " + dashed.encode(),
        "script.py": f"SKIP = {{'{CLIP}'}}\n".encode(),
        "run.sh": b"#!/bin/sh\ncp " + ID + b".mp4 /tmp\n",
        "utf16.txt": CLIP.encode("utf-16"),
        "utf16le.bin": b"\1\2" + CLIP.encode("utf-16-le"),
        "glued.txt": b"frame" + ID + b"0012",
        "numbers.bin": struct.pack("<f", 1.5) + ID + noise,
        f"names/{CLIP}.bin": b"",
        f"folders/{CLIP.upper()}/x": b"x",
        ".hidden/.note": ID,
        ".tmp-0123456789abcdef": ID,
        "clips/.tmp-fedcba9876543210": ID,
        "Makefile": b"all: " + ID,
        "model.safetensors": safetensors_of({"clip": CLIP}),
        "id.pickle": pickle.dumps({"id": CLIP}),
        # Captions in texts.
        "cogvideo/prompts.txt": b"A dog.\n" + SAID + b"\nA cat.\n",
        "opensora/train.csv": csv_of([["path", "text"], ["a.mp4", CAPTION]]),
        "tabs.tsv": b"a.mp4\t" + SAID + b"\t25\n",
        "semicolons.csv": b"a.mp4;" + PLAIN.encode() + b";25\n",
        "videox.json": json.dumps([{"text": CAPTION}]).encode(),
        "escaped.json": json.dumps({"x": json.dumps({"y": json.dumps([CAPTION])})}).encode(),
        "almost.json": b'{"text": ' + json.dumps(CAPTION).encode() + b", }  // a comment",
        "lines.jsonl": b'{"a": 1}\n' + json.dumps({"c": CAPTION}).encode() + b"\n",
        "keys.json": json.dumps({CAPTION: 1}).encode(),
        "plain.yaml": b"clips:\n  - caption: " + PLAIN.encode() + b"\n    fps: 25\n",
        "quoted.yaml": b"caption: " + json.dumps(CAPTION).encode() + b" # why\n",
        "folded.yaml": f"caption: >\n{wrapped(PLAIN, '  ')}\nfps: 3\n".encode(),
        "notes.md": f"# Notes\n\n- **{PLAIN}**\n".encode(),
        "table.md": f"| clip | caption |\n|---|---|\n| 1 | {CAPTION} |\n".encode(),
        "quote.md": wrapped(CAPTION, "> ").encode(),
        "image.md": f"![{PLAIN}](picture.jpg)".encode(),
        "comment.py": wrapped(PLAIN, "# ").encode(),
        "string.py": f"CAPTION = '{PLAIN}'\n".encode(),
        "triple.py": f'def f():\n    """{CAPTION}"""\n'.encode(),
        "joined.py": f'x = ("{PLAIN[:20]}"\n     "{PLAIN[20:]}")\n'.encode(),
        "code.js": f"const text = `{PLAIN}`;\n".encode(),
        "dump.sql": f"VALUES (1, '{CAPTION.replace(chr(39), chr(39) * 2)}');".encode(),
        "settings.ini": f"[clip]\ntext={PLAIN}\n".encode(),
        "settings.toml": f'text = "{PLAIN}"\n'.encode(),
        "movie.srt": f"1\n00:00:01,000 --> 00:00:02,000\n{CAPTION}\n".encode(),
        "app.log": f"2026-01-01 12:00:00 INFO caption: {CAPTION}\n".encode(),
        "page.html": f"<p class=x>{html.escape(CAPTION)}</p>".encode(),
        "attribute.html": f"<img alt='{html.escape(CAPTION.upper())}'>".encode(),
        "marked.html": f"<p>{PLAIN[:12]}<b>{PLAIN[12:20]}</b>{PLAIN[20:]}</p>".encode(),
        "feed.xml": f"<?xml version='1.0'?><t><![CDATA[{CAPTION}]]></t>".encode(),
        "link.txt": f"https://x.org/?q={urllib.parse.quote_plus(CAPTION)}&n=1".encode(),
        "latin.txt": f"caf\xe9: {PLAIN}\n".encode("cp1252"),
        "added.js": f"const t = '{PLAIN[:20]}' + '{PLAIN[20:]}';".encode(),
        "printable.eml": quopri.encodestring(f"Caption: {CAPTION} caf\xe9".encode()),
        "paper.tex": f"\\begin{{figure}}\\caption{{{PLAIN}}}\\end{{figure}}".encode(),
        "indented.jsonl": b"  " + json.dumps({"c": CAPTION}).encode() + b"\n  {}\n",
        "notebook.ipynb": json.dumps({"cells": [{"source": [f"x = '{PLAIN}'\n"]}]}).encode(),
        "comment.html": f"<!-- {PLAIN} --><br>".encode(),
        "entities.html": "".join(f"&#{ord(c)};" for c in PLAIN).encode(),
        "conversation.json": json.dumps({"value": f"<video>\nWhat is it?\n{CAPTION}"}).encode(),
        "wrapped.yaml": f'text: "{PLAIN[:20]}\\\n  {PLAIN[20:]}"\n'.encode(),
        "wide.txt": PLAIN.encode("utf-32"),
        "no_mark.txt": CAPTION.encode("utf-16-be"),
        "mail.txt": b"Content-Transfer-Encoding: base64\n\n" + base64.encodebytes(SAID * 2),
        "spaces.txt": PLAIN.replace(" ", "  \n").encode(),
        f"names/{PLAIN.replace(' ', '_')}.mp4": b"x",
        # Captions in other objects.
        "said.npy": npy_of(np.array([PLAIN, "x"])),
        "said.npz": npz_of(said=np.array([CAPTION])),
        "said.pickle": pickle.dumps([PLAIN]),
        "said.msgpack": b"\x81\xa1c\xd9" + bytes([len(PLAIN)]) + PLAIN.encode() + noise,
        "said.tfrecord": b"\x0a" + bytes([len(SAID)]) + SAID + b"\x12\x03abc" + noise,
        "said.safetensors": safetensors_of({"caption": PLAIN}),
        "said.png": png_of(PLAIN),
        "said.jpg": exif_of(PLAIN),
        "said.mp4": boxes((b"ftyp", 16), (b"moov", 9), (b"mdat", 50)) + box(b"udta", SAID),
        "said.sqlite": database_of(CLIP, PLAIN),
        # Captions that follow their length, where it is a printable character or is not.
        "length/4.pickle": b"\x80\x04}\x94\x8c\x07caption\x94\x8c=" + plain + b"\x94s.",
        "length/2.pickle": pickle.dumps({"caption": PLAIN}, 2),
        "length/0.pickle": pickle.dumps({"a": 1, "caption": PLAIN}, 0),
        "length/list.pickle": pickle.dumps([PLAIN, "x"], 0),
        "length/object.npy": npy_of(np.array([PLAIN, {"a": 2}], object)),
        "length/map.msgpack": b"\x91\x82\xa1t\xd9=" + plain + b"\xa1s\xcb?\xe0\0\0\0\0\0\0",
        "length/long.msgpack": b"\xa1t\xda\0=" + plain + b"\xa5after",
        "length/map.cbor": b"\xa1atx=" + plain + b"ab",
        "length/proto": b"\nK\n\x07caption\x12@\n>\n=" + plain + b"\x12\x05label",
        "length/proto.short": b"\nT\n=" + plain,
        "length/little": b"\1\2" + struct.pack("<I", len(PLAIN)) + plain + b"behind it" + noise,
        "length/two": b"\1\2" + struct.pack("<H", len(PLAIN)) + plain + b"behind it" + noise,
        "length/big": b"\1" + struct.pack(">I", len(PLAIN)) + plain + b"behind it" + noise,
        # Hexadecimal digits in lines.
        "hex/lines": lines_of(JPEG.hex(), 60).encode(),
        "hex/narrow": lines_of(JPEG.hex(), 8).encode(),
        "hex/odd": lines_of(MP4.hex(), 61, "\r\n").encode(),
        "hex/indented": lines_of(JPEG.hex().upper(), 64, "\r\n\t  ").encode(),
        "hex/caption": ("bytes\n" + lines_of(plain.hex(), 32) + "\nadded\n").encode(),
        "hex/escaped.json": json.dumps({"x": lines_of(MP4.hex(), 60)}).encode(),
        # Compressed streams and archives in other bytes.
        "in/script.run": script + gzip.compress(tar_of(("m", MP4))),
        "in/long.run": script * 200 + gzip.compress(tar_of(("m", MP4))),
        "in/xz": bytes(64) + lzma.compress(SAID) + bytes(99),
        "in/bz2": noise + bz2.compress(SAID) + noise,
        "in/gzip": bytes(range(99)) * 3 + gzip.compress(SAID) + b"more" + gzip.compress(b"x"),
        "in/second": bytes(64) + gzip.compress(b"x") + bytes(9) + gzip.compress(SAID) + noise,
        "in/zstd": bytes(64) + bytes(pa.Codec("zstd").compress(SAID * 3, asbytes=True)),
        "in/ar.deb": b"!<arch>\ndata.tar.gz     0   `\n" + gzip.compress(tar_of(("m", JPEG))),
        "in/web.warc": b"WARC/1.0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + gzip.compress(SAID) + b"\r\n",
        "in/zeros.zip": b"MZ" + noise + zip_of(("a", JPEG)) + bytes(200_000),
        "in/behind.gz": gzip.compress(b"fine") + MP4,
        # Clips, pictures and sources.
        "clip.mp4": MP4,
        "clip.dat": MP4,
        "longer.mp4": MP4 + bytes(100),
        "shard.mds": struct.pack("<80I", *range(80)) + noise + MP4 + noise,
        "two.bin": OTHER_MP4 + MP4,
        "picture.jpg": JPEG,
        "picture": JPEG,
        "longer.jpg": JPEG + b"more",
        "pictures.bin": noise + OTHER_JPEG + JPEG + noise,
        "pictures.pickle": pickle.dumps([OTHER_JPEG, JPEG]),
        "uri.html": f"<img src='{uri}'>".encode(),
        "uri.css": f"p {{ background: url({uri.replace('jpeg', 'png')}) }}".encode(),
        "uri.json": json.dumps({"url": uri}).replace("/", "\\/").encode(),
        "url_safe.txt": base64.urlsafe_b64encode(JPEG),
        "digits.txt": JPEG.hex().encode(),
        "base64.json": json.dumps([b64(MP4)]).encode(),
        "short_lines.b64": wrapped(b64(JPEG), width=40).encode(),
        "list.b64": "\n".join([b64(b"\xff\xd8\xff" + noise), b64(JPEG)]).encode(),
        "id.b64": base64.b64encode(ID),
        "id.hex": ID.hex().encode(),
        "percent.css": f"url({urllib.parse.quote(uri, safe='')})".encode(),
        "array.npy": npy_of(np.frombuffer(MP4, np.uint8)),
        "array.npz": npz_of(x=np.frombuffer(JPEG, np.uint8)),
        "lines.b64": base64.encodebytes(MP4),
        "film.mkv": SOURCE,
        "no_suffix": SOURCE,
        "large.bin": LARGE,
        "uri.sqlite": database_of(JPEG, uri),
        # Tars.
        "tars/plain.tar": tar_of(("a.json", json.dumps({"x": CLIP}).encode())),
        "tars/text.dat": tar_of(("a.caption", SAID)),
        "tars/name.tar": tar_of((f"{CLIP}.bin", b"")),
        "tars/long.tar": tar_of((f"{'x' * 150}/{CLIP}.txt", b"x"), form=tarfile.GNU_FORMAT),
        "tars/pax.tar": tar_of(("\xe4" * 150 + f"/{CLIP}.txt", b"x")),
        "tars/clip.tar": tar_of(("a.video", MP4)),
        "tars/picture.tar": tar_of(("a.thumb", JPEG)),
        "tars/source.tar": tar_of(("film", SOURCE)),
        "tars/parquet.tar": tar_of(("a.pq", parquet_of(strings))),
        "tars/npy.tar": tar_of(("a.npy", npy_of(np.array([CLIP])))),
        "tars/npz.tar": tar_of(("a.npz", npz_of(x=np.array([CLIP])))),
        "tars/inner.tar": tar_of(("a.tar", tar_of(("b.tar.gz", gzip.compress(tar_of(("c", ID))))))),
        "tars/truncated.tar": tar_of(("a", b"x"), ("b.txt", ID + bytes(9000)))[:4000],
        "tars/behind.tar": tar_of(("a", b"x")) + tar_of(("b", SAID)),
        "tars/slack.tar": tar_of(("a", b"x")) + MP4 + bytes(512),
        "tars/slack_text.tar": tar_of(("a", b"x"))[:2048] + b"\n" + SAID + b"\n" + bytes(70),
        "tars/slack_id.tgz": gzip.compress(tar_of(("a", b"x")) + b"id " + ID + bytes(512)),
        "tars/padding.tar": padded(tar_of(("a", b"x"), ("b", b"y")), ID),
        "tars/padding_last.tar": padded(tar_of(("a", b"x")), plain),
        "tars/ustar.tar": tar_of(("a.txt", SAID), form=tarfile.USTAR_FORMAT),
        # Parquet and Arrow.
        "p/string": parquet_of(strings),
        "p/large": parquet_of(strings.cast(pa.large_string()), compression="zstd"),
        "p/view": parquet_of(strings.cast(pa.string_view())),
        "p/binary": parquet_of(pa.array([MP4])),
        "p/large_binary": parquet_of(pa.array([JPEG], pa.large_binary())),
        "p/binary_view": parquet_of(pa.array([JPEG], pa.binary_view())),
        "p/fixed": parquet_of(pa.array([JPEG], pa.binary(len(JPEG)))),
        "p/bytes": parquet_of(pa.array([bytes.fromhex(CLIP)], pa.binary(12))),
        "p/dictionary": parquet_of(strings.dictionary_encode()),
        "p/list": parquet_of(pa.array([["x", CAPTION]])),
        "p/large_list": parquet_of(pa.array([[CLIP]], pa.large_list(pa.string()))),
        "p/fixed_list": parquet_of(pa.array([[CLIP, "x"]], pa.list_(pa.string(), 2))),
        "p/struct": parquet_of(pa.array([{"a": {"b": CAPTION}}])),
        "p/map": parquet_of(pa.array([[("k", CAPTION)]], pa.map_(pa.string(), pa.string()))),
        "p/map_key": parquet_of(pa.array([[(CLIP, 1)]], pa.map_(pa.string(), pa.int64()))),
        "p/json": parquet_of(pa.array([json.dumps({"deep": [{"x": CAPTION}]})])),
        "p/uri": parquet_of(pa.array([uri])),
        "p/base64": parquet_of(pa.array([b64(MP4)])),
        "p/gzip": parquet_of(pa.array([gzip.compress(SAID)])),
        "p/tar": parquet_of(pa.array([tar_of(("a", JPEG))])),
        "p/numbers": parquet_of(pa.array([list(JPEG), None], pa.list_(pa.uint8()))),
        "p/html": parquet_of(pa.array([f"<p>{html.escape(CAPTION)}</p>"])),
        "p/footer": with_metadata("note", ID),
        "p/caption_footer": with_metadata("note", json.dumps({"x": CAPTION}).encode()),
        "p/column": parquet_of(pa.StructArray.from_arrays([pa.array([1])], [CLIP])),
        "a/file": arrow_of(strings, pa.ipc.new_file),
        "a/zstd": arrow_of(
            strings, pa.ipc.new_file, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ),
        "a/stream": arrow_of(pa.array([[JPEG]]), pa.ipc.new_stream),
        "a/run_ends": arrow_of(
            pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([CAPTION])),
            pa.ipc.new_stream,
        ),
        # Compressed.
        "z/text.gz": gzip.compress(SAID),
        "z/no_suffix": gzip.compress(MP4),
        "z/tar.tgz": gzip.compress(tar_of(("a.txt", ID))),
        "z/two.gz": gzip.compress(b"x" * 50) + gzip.compress(ID),
        "z/name.gz": gzip_named(f"{CLIP}.txt"),
        "z/table.csv.gz": gzip.compress(csv_of([["a.mp4", CAPTION]])),
        "z/parquet.zst": bytes(pa.Codec("zstd").compress(parquet_of(strings), asbytes=True)),
        "z/text.bz2": bz2.compress(SAID),
        "z/text.xz": lzma.compress(SAID),
        "z/text.lzma": lzma.compress(SAID, lzma.FORMAT_ALONE),
        "z/object": zlib.compress(SAID * 3),
        "z/text.zst": bytes(pa.Codec("zstd").compress(SAID * 3, asbytes=True)),
        "z/text.lz4": bytes(pa.Codec("lz4").compress(SAID * 3, asbytes=True)),
        "z/text.zip": zip_of(("a.txt", SAID)),
        "z/clip.zip": zip_of(("x/a", MP4), how=zipfile.ZIP_STORED),
        "z/name.zip": zip_of((f"{CLIP}.txt", b"")),
        "z/lzma.zip": zip_of(("a", JPEG), how=zipfile.ZIP_LZMA),
        "z/behind.bin": bytes(range(200)) * 3 + zip_of(("a.txt", SAID)),
        "z/inner.zip": zip_of(("a.zip", zip_of(("b.gz", gzip.compress(ID))))),
        "z/damaged.gz": gzip.compress(ID + bytes(200_000))[:-30],
    }  # fmt: skip


def closed() -> dict[str, bytes]:
    """What cannot be searched, by the name of the object."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", b"x")
    encrypted = out.getvalue().replace(b"PK\x03\x04\x14\x00\x00", b"PK\x03\x04\x14\x00\x01")
    encrypted = encrypted.replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
    )
    return {
        "archive.7z": b"7z\xbc\xaf\x27\x1c" + _RANDOM.randbytes(200),
        "archive.rar": b"Rar!\x1a\x07" + _RANDOM.randbytes(200),
        "page.pdf": b"%PDF-1.7\n" + _RANDOM.randbytes(200),
        "secret.gpg": _RANDOM.randbytes(900),
        "secret.asc": b"-----BEGIN PGP MESSAGE-----\n\nabcd\n",
        "salted.enc": b"Salted__" + _RANDOM.randbytes(200),
        "table.parquet": b"PARE" + _RANDOM.randbytes(200) + b"PARE",
        "cut.mp4": MP4[:2400],
        "cut": OTHER_MP4[:3200],
        "cut_early.mp4": MP4[:100],
        "cut_between.mp4": MP4[:332],
        "cut_last": MP4[:-1],
        "broken.parquet": b"PAR1" + bytes(200),
        "encrypted.zip": encrypted,
        "bomb.gz": gzip.compress(bytes(3 << 20), 9),
        "deep.gz": deep(),
        "data.h5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    }


def deep() -> bytes:
    data = b"x" * 100
    for _ in range(10):
        data = gzip.compress(data)
    return data


def write(out: Path, objects: dict[str, bytes]) -> None:
    for name, data in objects.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def named(out: Path, proven: ProvenRemoved, code: str = "removed") -> set[str]:
    """Objects with a finding."""
    paths = [f.path for f in proven.findings if f.code == code]
    return {os.path.relpath(path.partition("#")[0], out) for path in paths}


def test_all_remains_are_found(tmp_path: Path) -> None:
    """Pins each kind of object."""
    record_of(tmp_path)
    planted = plants()
    assert len(planted) > 130
    write(tmp_path, planted)
    (tmp_path / "empty" / CLIP).mkdir(parents=True)
    proven = verify_removed(str(tmp_path))
    missed = planted.keys() - named(tmp_path, proven)
    assert not missed
    assert f"empty/{CLIP}" in named(tmp_path, proven)


def test_what_cannot_be_searched_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_search, "_SPOOL_BYTES", 1 << 20)
    record_of(tmp_path)
    objects = closed()
    write(tmp_path, objects)
    proven = verify_removed(str(tmp_path))
    assert named(tmp_path, proven, "not_searched") == objects.keys()
    assert named(tmp_path, proven) == set()
    assert proven.n_not_searched >= len(objects)
    assert not proven.is_well
    assert main(["verify", str(tmp_path), "--removed"]) == EXIT_FAILED
    printed = capsys.readouterr().out
    assert "so this does not cover them" in printed
    assert "not looked for: footage encoded" in printed


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Ends a wait that would never end."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_special_files_are_named_and_never_waited_for(tmp_path: Path) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(ID)
    record_of(out)
    write(out, {"folder/real.txt": b"x"})
    os.mkfifo(out / "fifo")
    (out / "loop").symlink_to(out / "loop")
    (out / "folder" / "up").symlink_to(out)
    (out / "dangling").symlink_to("nowhere")
    (out / "file").symlink_to(outside / "x")
    (out / "named").symlink_to(f"/nowhere/{CLIP}.mp4")
    (out / "tree").symlink_to(outside)
    (out / "inside").symlink_to("folder/real.txt")
    expected = {"fifo", "loop", "dangling", "file", "tree", "named"}
    if os.geteuid():
        (out / "locked").write_bytes(b"x")
        (out / "locked").chmod(0)
        expected.add("locked")
    with closing(socket.socket(socket.AF_UNIX)) as server, limited(20):
        here = Path.cwd()
        os.chdir(out)
        server.bind("socket")
        os.chdir(here)
        proven = verify_removed(str(out))
    assert named(out, proven, "not_searched") >= {*expected, "socket"}
    assert "inside" not in named(out, proven, "not_searched")
    assert named(out, proven) == {"named"}


def test_an_object_that_changes_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_of(tmp_path)
    write(tmp_path, {"a": b"x", "b": b"x"})
    whole = ContentSearch.object

    def changing(search: ContentSearch, file: BinaryIO, size: int, key: str, **more: bool) -> None:
        whole(search, file, size, key, **more)
        if key == "b":
            (tmp_path / key).write_bytes(b"longer")

    monkeypatch.setattr(ContentSearch, "object", changing)
    proven = verify_removed(str(tmp_path))
    assert named(tmp_path, proven, "not_searched") == {"b"}


def test_other_objects_give_no_finding(tmp_path: Path) -> None:
    """Pins the same kinds of objects, of other footage: no remains, and nothing unsearched."""
    record_of(tmp_path)
    caption = CAPTION.replace("left", "right")
    others = {
        "CLIP": "a" * 24, "ID": b"a" * 24, "CAPTION": caption, "SAID": caption.encode(),
        "PLAIN": PLAIN.replace("brown", "black"), "MP4": OTHER_MP4, "JPEG": OTHER_JPEG,
        "SOURCE": SOURCE + b"x", "LARGE": LARGE[:1000], "SOURCE_IDS": ["b" * 32],
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in others.items():
            patch.setitem(globals(), name, value)
        objects = plants()
    # A part of a caption, and a text that is too short, are of no clip alone.
    objects["part.txt"] = PLAIN[:40].encode()
    objects |= {"short.txt": b"A red car", "half.txt": ID[:16]}
    write(tmp_path, objects)
    proven = verify_removed(str(tmp_path))
    assert named(tmp_path, proven) == set()
    assert named(tmp_path, proven, "not_searched") == {"tars/truncated.tar", "z/damaged.gz"}
    assert proven.read["objects"] == len(objects) + 3
    for name in named(tmp_path, proven, "not_searched"):
        (tmp_path / name).unlink()
    assert main(["verify", str(tmp_path), "--removed"]) == EXIT_OK


def test_captions_that_other_clips_share_give_no_finding(tmp_path: Path) -> None:
    """Pins captions that a clip that stays has as a whole, and as a part of its own."""
    record_of(tmp_path)
    rows = {"clip_id": ["a" * 24], "caption": [f"{PLAIN}. {CAPTION}"]}
    write(tmp_path, {"clips/part-00000-0123456789ab.parquet": parquet_table(rows)})
    summary = {
        "format": FORMAT, "snapshot": 1,
        "tables": {"clips": ["clips/part-00000-0123456789ab.parquet"]},
    }  # fmt: skip
    store = open_store(str(tmp_path))
    name = "snapshots/00000001.json"
    store.write(name, sealed_json(summary, to_json, name))
    write(tmp_path, {"a.txt": SAID, "b.csv": f"1,{PLAIN}\n".encode()})
    proven = verify_removed(str(tmp_path))
    assert named(tmp_path, proven) == set()


def parquet_table(rows: dict[str, list[str]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(rows), out)
    return out.getvalue()


def test_objects_of_a_bucket_are_all_searched(s3_bucket: str) -> None:
    """Pins keys that no store writes, and uploads that did not finish."""
    uri = f"s3://{s3_bucket}/remains"
    store = open_store(uri)
    record_of(uri)
    for key in ("a.txt", ".tmp-0123456789abcdef", "b//c", f"d/{CLIP}/"):
        client().put_object(Bucket=s3_bucket, Key=f"remains/{key}", Body=ID)
    client().create_multipart_upload(Bucket=s3_bucket, Key="remains/begun.bin")
    proven = verify_removed(store.uri)
    found = {f.path.removeprefix(f"{uri}/").partition("#")[0] for f in proven.findings}
    assert found == {"a.txt", ".tmp-0123456789abcdef", "b//c", f"d/{CLIP}/", "begun.bin"}
    codes = {f.path.rpartition("/")[2]: str(f.code) for f in proven.findings}
    assert codes["begun.bin"] == "not_searched"


def test_json_has_names_that_are_not_utf_8_and_remedies_for_objects_of_others(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    record_of(tmp_path)
    write(tmp_path, {"notes.txt": ID})
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff" + ID, os.O_CREAT | os.O_WRONLY))
    assert main(["verify", str(tmp_path), "--removed", "--json"]) == EXIT_FAILED
    findings = json.loads(capfdbinary.readouterr().out.decode("utf-8"))["findings"]
    paths = {finding["path"].partition("#")[0] for finding in findings}
    assert paths == {f"{tmp_path}/notes.txt", f"{tmp_path}/\udcff{CLIP}"}
    assert all(finding["remedy"].startswith("delete the object by hand") for finding in findings)
