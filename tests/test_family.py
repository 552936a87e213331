"""Declarations of families, and the values that fit them."""

import json
import traceback
from fractions import Fraction

import numpy as np
import pytest
import torch

from curator.errors import in_one_line
from curator.family import (
    FRAMES,
    Array,
    Bytes,
    Columns,
    Family,
    FamilyError,
    FamilyVersion,
    Kind,
    Place,
    Scope,
    Text,
    Video,
    per_second,
)
from curator.frame_axes import AxisError, TimeAxis
from curator.media import value_video
from curator.value_header import ValueHeader

OneOf = Array | Text | Bytes | Video


def family(content: OneOf, member: str) -> Family:
    return Family("values", Scope.CLIP, content, member=member)


@pytest.mark.parametrize("ending", ["npy", "safetensors"])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("f16", "float16"), ("f32", "float32"), ("u8", "uint8"), ("i64", "int64"), ("bool", "bool")],
)
def test_an_array_comes_back_as_it_was(ending: str, kind: Kind, dtype: str) -> None:
    made = family(Array(kind, ("t", 3)), f"values.{ending}")
    value = (np.arange(12).reshape(4, 3) % 2).astype(dtype)
    for given in (value, torch.from_numpy(value), np.asfortranarray(value)):
        found = made.decode(made.encode(given))
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)


def test_bfloat16_stays_bfloat16() -> None:
    made = family(Array("bf16", ("d",)), "values.safetensors")
    given = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    found = made.decode(made.encode(given))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, given)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_equal_values_have_equal_bytes_in_every_process(kind: Kind) -> None:
    """Pins the order of names in headers, which the library draws anew in each process."""
    made = family(Array(kind, (2,)), "values.safetensors")
    header = ValueHeader(
        fingerprint="1", mp4_sha256="2", frames=(0, 4), columns={"caption": "3", "a": "4"}
    )
    value = torch.tensor([1.0, 2.0], dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
    data = made.encode(value, header)
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert list(names) == sorted(names)
    assert len(names) == 6
    assert made.header(data) == header
    assert torch.equal(torch.as_tensor(made.decode(data)), value)


def test_metadata_of_another_form_is_no_header() -> None:
    """Pins that `verify` reports such a value, and does not end with an error of its own."""
    metadata = b'{"__metadata__":["family"]}'
    data = len(metadata).to_bytes(8, "little") + metadata
    with pytest.raises(FamilyError, match="no header"):
        family(Array("f32", (2,)), "values.safetensors").header(data)
    frames = np.zeros((2, 32, 32), np.uint16)
    for comment in ('["family"]', "7"):
        video = value_video.encode_video(frames, fps=Fraction(25), crf=None, metadata={})
        begin = video.index(b'{"sha256":"')
        length = video.index(b'"}', begin) + 2 - begin
        video = video[:begin] + comment.encode().ljust(length) + video[begin + length :]
        with pytest.raises(FamilyError, match=r"no header|no video"):
            family(Video("ffv1"), "values.mkv").header(video)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.zeros((2, 4), np.float16), r"shape \[2, 4\]; expected \[t, 3\]"),
        (np.zeros((2, 3, 1), np.float16), r"shape \[2, 3, 1\]"),
        (np.zeros((2, 3)), "float64; expected float16"),
        ("text", "a value of str"),
        (None, "a value of NoneType"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: object, said: str) -> None:
    with pytest.raises(FamilyError, match=said):
        family(Array("f16", ("t", 3)), "values.npy").encode(value)


@pytest.mark.parametrize("member", ["values.npy", "values.safetensors"])
def test_bytes_that_hold_no_such_value_are_refused(member: str) -> None:
    made = family(Array("f16", ("t", 3)), member)
    whole = made.encode(np.zeros((2, 3), np.float16))
    other = family(Array("f32", ("t", 3)), member).encode(np.zeros((2, 3), np.float32))
    wide = family(Array("f16", ("t", 4)), member).encode(np.zeros((2, 4), np.float16))
    for data in (b"", b"{}", whole[:-1], whole[:8], other, wide, b"\xff" * 64):
        with pytest.raises(FamilyError):
            made.decode(data)


def test_texts_and_bytes() -> None:
    made = family(Text(), "values.txt")
    assert made.decode(made.encode("Grüße")) == "Grüße"
    with pytest.raises(FamilyError, match="no UTF-8"):
        made.decode(b"\xff")
    picture = family(Bytes("image/png"), "values.png")
    assert picture.decode(picture.encode(b"png")) == b"png"


@pytest.mark.parametrize(
    ("name", "content", "member"),
    [
        ("Values", Text(), "values.txt"),
        ("caption", Text(), "values.txt"),
        ("values", Text(), "values"),
        ("values", Text(), "mp4"),
        ("values", Text(), "../values.txt"),
        ("values", Text(), "values.npy"),
        ("values", Array("bf16", ("d",)), "values.npy"),
    ],
)
def test_a_declaration_that_readers_could_not_follow_is_refused(
    name: str, content: OneOf, member: str
) -> None:
    with pytest.raises(FamilyError):
        Family(name, Scope.CLIP, content, member=member)


@pytest.mark.parametrize("content", [Array("f16", (16, "t")), Text(), Bytes("image/png")])
def test_a_declaration_is_read_without_the_stage(content: OneOf) -> None:
    made = FamilyVersion(family(content, f"values.{content.endings[0]}"), "0" * 16)
    assert FamilyVersion.from_json(made.to_json()) == made
    for key in made.to_json().keys() - {"fingerprint"}:
        damaged = {name: value for name, value in made.to_json().items() if name != key}
        with pytest.raises(FamilyError):
            FamilyVersion.from_json(damaged)


def test_a_declaration_of_an_earlier_version_is_read() -> None:
    """Pins that loaders read, and runs extend, shards that have no families beside the samples."""
    for place, in_samples in ((Place.SAMPLE, True), (Place.TABLE, False)):
        made = Family("scores", Scope.CLIP, Columns({"score": "f32"}), place=place)
        earlier = made.to_json() | {"in_samples": in_samples}
        del earlier["place"]
        assert Family.from_json(earlier) == made


def test_an_error_of_this_package_names_no_place_of_it() -> None:
    """Pins that a wrong value does not send its author to a line of Python's library."""
    with pytest.raises(FamilyError) as caught:
        family(Array("f16", (3,)), "values.npy").encode(np.zeros(4, np.float16))
    own = [f for f in traceback.extract_tb(caught.tb) if f.filename != __file__]
    caught.value.__traceback__ = caught.tb.tb_next
    assert own
    assert in_one_line(caught.value).endswith("expected [3]")


def test_an_axis_of_frames_has_an_entry_for_each_frame() -> None:
    """Pins what the worker checks, in stored declarations too."""
    made = Family.from_json(family(Array("f32", (2, FRAMES)), "values.npy").to_json())
    assert made.time_axis == TimeAxis(1)
    made.check_length((2, 7), None, 7, Fraction(24))
    with pytest.raises(FamilyError, match=r"a value of 7 frames; expected 8, one entry for each"):
        made.check_length((2, 7), None, 8, Fraction(24))
    with pytest.raises(FamilyError, match="at most one axis of time"):
        Array("f32", (FRAMES, per_second(2)))
    assert family(Array("f32", ("t",)), "values.npy").time_axis is None


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), (1, 2)])
def test_facts_that_json_does_not_have_are_refused(fact: object) -> None:
    """Pins that the manifest stays JSON."""
    with pytest.raises(
        FamilyError, match=r"fact 'scale' is .*; expected a finite number or a text"
    ):
        Family("v", Scope.CLIP, Array("f32", (2,)), member="v.safetensors", facts={"scale": fact})  # type: ignore[dict-item]


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), "often", "1/0"])
def test_rates_that_are_none_are_refused(rate: float | str) -> None:
    with pytest.raises(AxisError, match="expected a number above 0"):
        per_second(rate)
    with pytest.raises(FamilyError, match="expected a number above 0"):
        Array("f32", (f"per_second:{rate}",))
