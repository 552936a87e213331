"""Claims of captions: which words make one, and what measurements say about it."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace

import cv2
import numpy as np
import pytest

from curator.measures.claims.claim_check import KINDS, check_caption, support_of
from curator.measures.claims.claim_records import UNMEASURED, Judgement, Measured, Verdict

SCORES: Mapping[str, float | None] = {
    "luma": 0.45, "camera_motion": 0.1, "camera_share": 0.9, "motion": 0.12, "shot_doubt": 0.0,
    "text_area": 0.0, "overlay_text_area": 0.0, "audio_coverage": 1.0, "audio_rms_db": -20.0,
}  # fmt: skip
N_FRAMES, FPS = 100, 25


def jpeg(picture: np.ndarray) -> bytes:
    return bytes(cv2.imencode(".jpg", picture[..., ::-1])[1])


def red_balls(n: int) -> bytes:
    picture = np.full((180, 320, 3), (60, 90, 200), np.uint8)
    for number in range(n):
        cv2.circle(picture, (40 + 50 * number, 90), 14, (210, 30, 30), -1)
    return jpeg(picture)


def dark_street() -> Measured:
    """A picture of luma 0.25 in which a lamp fills a tenth, with black edges."""
    picture = np.full((180, 320, 3), 45, np.uint8)
    picture[60:120, 100:200] = 250
    picture[:, :20] = picture[:, -20:] = 0
    luma = np.full(N_FRAMES, 0.25, np.float32)
    return panned(
        scores={**SCORES, "luma": 0.25},
        signals={**panned().signals, "luma_mean": luma},
        thumbnails=(jpeg(picture),) * 3,
    )


def panned(sign: float = -1.0, **changes: object) -> Measured:
    """A clip of 4 s, 1280x720, whose camera pans left, or right for sign 1."""
    sample_s = np.repeat(np.arange(8) / 2, 13)[:N_FRAMES].astype(np.float32)
    still = np.zeros(N_FRAMES, np.float32)
    signals = {
        "sample_s": sample_s, "pan_rate": still + np.float32(0.1 * sign), "tilt_rate": still,
        "zoom_rate": still, "roll_rate": still, "camera_motion": still + 0.1, "motion": still + 0.1,
        "luma_mean": still + 0.45, "boundary_probability": still,
    }  # fmt: skip
    tag = "pan_left" if sign < 0 else "pan_right"
    values: dict[str, object] = {
        "scores": SCORES, "seconds": 4.0, "width": 1280, "height": 720, "tags": [tag],
        "signals": signals, "thumbnails": (red_balls(3),) * 3,
    }  # fmt: skip
    return Measured(**(values | changes))  # type: ignore[arg-type]


def verdicts(caption: object, measured: Measured | None = None) -> list[tuple[str, str, str]]:
    claims = check_caption(caption, measured or panned())
    return [(claim.kind, claim.value, str(claim.verdict)) for claim in claims]


@pytest.mark.parametrize(
    "caption",
    [
        "A man pans for gold by the river.",
        "She tilts her head, and he zooms past on a bike.",
        "A woman waves at the camera and turns right.",
        'He says "the camera pans right and it is night".',
        "The camera might pan right.",
        "The scene slowly emerges into darkness.",
        "A black and white cat sleeps on a dark mat.",
        "A silent man in a bright shirt sits in a portrait gallery.",
        "A portrait of a woman with red hair, about thirty years old.",
        "After three seconds, he jumps, as soldiers do.",
        "The camera shows a man moving right and a truck.",
        "Two shots of espresso are poured, and a man cuts bread with no knife.",
        "El vídeo muestra una calle; no hay texto y la cámara no se mueve.",
        "Die Kamera ist still. Das Video ist in Portrait.",
        "",
    ],
)
def test_other_words_are_no_claims(caption: str) -> None:
    assert verdicts(caption) == []


@pytest.mark.parametrize(
    ("caption", "kind", "value", "verdict"),
    [
        ("The camera slowly pans to the left.", "camera", "pan_left", "confirmed"),
        ("As he runs, the camera pans right.", "camera", "pan_right", "contradicted"),
        ("The camera does not pan left.", "camera", "not pan_left", "contradicted"),
        ("The view sweeps from right to left.", "camera", "pan_left", "confirmed"),
        ("The camera zooms in on the man.", "camera", "zoom_in", "contradicted"),
        ("A static shot of a river.", "camera", "static", "contradicted"),
        ("Camera: static. Lighting: bright.", "camera", "static", "contradicted"),
        ("Time of day: night.", "daytime", "night", "contradicted"),
        ("There is no camera movement.", "camera", "not moves", "contradicted"),
        ("It is one continuous take.", "shots", "single", "confirmed"),
        ("The scene has no cuts.", "shots", "not cut", "confirmed"),
        ("The video cuts to a close-up.", "shots", "cut", "contradicted"),
        ("The video contains three shots.", "shots", "3", "contradicted"),
        ("The video plays without any edits or cuts.", "shots", "not cut", "confirmed"),
        ("The camera does not pan, tilt or zoom.", "camera", "not zoom", "confirmed"),
        ("The camera pans, but does not tilt.", "camera", "not tilt", "confirmed"),
        ("A slide without text on a yellow background.", "colour", "mostly yellow", "contradicted"),
        ("static shot, night, neon lights, city street, rain", "daytime", "night", "contradicted"),
        ("7 red circles can be counted.", "count", "7 red", "contradicted"),
        ("The clip fades in from black.", "order", "fade_in", "contradicted"),
        ("Balls on a blue background.", "colour", "mostly blue", "confirmed"),
        ("Balls on a bright yellow background.", "colour", "mostly yellow", "contradicted"),
        ("The clip is black and white.", "colour", "monochrome", "contradicted"),
        ("There are three red balls.", "count", "3 red", "confirmed"),
        ("There are five red balls.", "count", "5 red", "contradicted"),
        ("The room is dark.", "brightness", "dark", "contradicted"),
        ("A city at night.", "daytime", "night", "contradicted"),
        ("It is daytime.", "daytime", "day", "confirmed"),
        ("Nothing moves.", "speed", "still", "contradicted"),
        ("There is no text.", "text", "not text", "confirmed"),
        ('A sign reads "Exit now".', "text", '"Exit now"', "contradicted"),
        ("The clip is silent.", "sound", "silent", "contradicted"),
        ("No sound can be heard.", "sound", "not audible", "contradicted"),
        ("Music plays in the background.", "sound", "audible", "confirmed"),
        ("The clip lasts four seconds.", "duration", "4", "confirmed"),
        ("A 10-second clip of a river.", "duration", "10", "contradicted"),
        ("A vertical video.", "orientation", "portrait", "contradicted"),
        ("The frame is wider than it is tall.", "orientation", "landscape", "confirmed"),
    ],
)
def test_claims_are_judged(caption: str, kind: str, value: str, verdict: str) -> None:
    assert (kind, value, verdict) in verdicts(caption)


def test_what_is_not_measured_contradicts_nothing() -> None:
    bare = Measured(scores={}, seconds=4.0, width=100, height=100)
    caption = (
        "The camera pans right. It is night. A red background. No text. Silent clip. "
        "Nothing moves. The video cuts to a close-up. Two red balls. The clip fades to black."
    )
    claims = check_caption(caption, bare)
    assert {claim.kind for claim in claims} == {
        "camera", "daytime", "colour", "text", "sound", "speed", "shots", "count", "order",
    }  # fmt: skip
    assert {claim.verdict for claim in claims} == {Verdict.UNKNOWN}
    assert support_of(claims) == (None, 0)


def test_values_between_the_bounds_are_unknown() -> None:
    dusky = panned(scores={**SCORES, "luma": 0.3, "audio_rms_db": -57.0})
    assert [
        v for *_, v in verdicts("It is night. The clip is silent. The room is dark.", dusky)
    ] == ["unknown"] * 3
    lamp = dark_street()
    told = verdicts("It is night. It is daytime. The room is bright.", lamp)
    assert [v for *_, v in told] == ["confirmed", "contradicted", "contradicted"]
    assert verdicts("A 5-second clip.", panned(seconds=6.2))[0][2] == "unknown"


def test_a_camera_that_most_of_the_picture_does_not_follow_contradicts_nothing() -> None:
    unclear = panned(scores={**SCORES, "camera_share": 0.3})
    assert verdicts("The camera pans right.", unclear) == [("camera", "pan_right", "unknown")]


def test_things_that_stand_still_in_the_frame_hide_a_still_camera_but_no_movement() -> None:
    half = {**SCORES, "camera_share": 0.5}
    assert verdicts("The camera pans right.", panned(scores=half))[0][2] == "contradicted"
    still = {**half, "camera_motion": 0.001}
    signals = {**panned().signals, "pan_rate": np.zeros(N_FRAMES, np.float32)}
    hidden = panned(scores=still, signals=signals, tags=["camera_static"])
    told = verdicts("The camera pans right. It is a static shot.", hidden)
    assert [v for *_, v in told] == ["unknown"] * 2


def test_the_boundary_where_a_fade_from_black_ends_is_no_cut() -> None:
    luma = np.full(N_FRAMES, 0.45, np.float32)
    luma[:25] = np.linspace(0, 0.45, 25)
    boundary = np.zeros(N_FRAMES, np.float32)
    boundary[12] = 0.9
    signals = {**panned().signals, "luma_mean": luma, "boundary_probability": boundary}
    assert verdicts("It has no cuts.", panned(signals=signals))[0][2] == "confirmed"
    boundary[60] = 0.9
    told = "It has no cuts. It consists of two shots. It consists of four shots."
    assert [v for *_, v in verdicts(told, panned(signals=signals))] == [
        "contradicted", "confirmed", "contradicted",
    ]  # fmt: skip


def test_the_order_of_movements_is_checked_by_their_times() -> None:
    signals = dict(panned().signals)
    late = signals["sample_s"] >= 2
    signals["pan_rate"] = np.where(late, 0, -0.1).astype(np.float32)
    signals["tilt_rate"] = np.where(late, 0.1, 0).astype(np.float32)
    measured = panned(signals=signals, tags=["pan_left", "tilt_up"])
    right = "First the camera pans left, then it tilts up."
    assert ("order", "pan_left>tilt_up", "confirmed") in verdicts(right, measured)
    wrong = "The camera tilts up before it pans left."
    assert ("order", "tilt_up>pan_left", "contradicted") in verdicts(wrong, measured)


def test_quoted_text_is_confirmed_only_if_it_was_read() -> None:
    scores = {**SCORES, "text_area": 0.02, "overlay_text_area": 0.02}
    caption = 'The title "Summer Sale" appears.'
    assert verdicts(caption, panned(scores=scores))[0][2] == "unknown"
    read = panned(scores=scores, text_lines=("SUMMER SA1E", "2024"))
    assert verdicts(caption, read)[0][2] == "confirmed"
    small = panned(width=192, height=108)
    assert verdicts(caption, small)[0][2] == "unknown"


def test_fields_of_structured_captions_are_read_and_name_the_camera() -> None:
    answer = {"caption": "A dog runs.", "camera": "Pans right across the yard", "tags": ["night"]}
    found = [("camera", "pan_right", "contradicted")]
    assert verdicts(answer) == found
    assert verdicts(json.dumps(answer)) == found
    assert verdicts({"subject": "Pans right across the yard"}) == []
    fields = {"camera_motion": "static", "lighting": "dark", "background": {"colour": "yellow"}}
    assert {verdict for *_, verdict in verdicts(fields)} == {"contradicted"}
    assert [value for _, value, _ in verdicts(fields)] == ["static", "dark", "mostly yellow"]
    none = {"text": "None", "on_screen": "No visible text.", "audio": "none", "length": "4s"}
    assert [value for _, value, _ in verdicts(none)] == ["not text", "not text", "not audible", "4"]


def test_support_counts_confirmed_and_contradicted_claims() -> None:
    claims = check_caption("The camera pans left. It is night. The clip has sound.", panned())
    assert support_of(claims) == (pytest.approx(2 / 3), 1)
    assert claims[1].to_json() == {
        "kind": "daytime", "text": "It is night", "value": "night", "verdict": "contradicted",
        "measured": "luma 0.45, 0% of the picture dark",
    }  # fmt: skip


def test_a_caption_that_repeats_itself_is_checked_in_time() -> None:
    begun_s = time.monotonic()
    claims = check_caption("no cuts " * 1500 + "no " + "thing " * 4000, panned())
    assert {claim.value for claim in claims} == {"not cut"}
    assert time.monotonic() - begun_s < 5  # the unbounded patterns took minutes


def test_names_of_kinds_are_distinct() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) == 12


@pytest.mark.parametrize(
    "text",
    [
        "x, ",
        "red, ",
        "dark ",
        "the camera pans ",
        "“",
        "' '",
        ". ",
        "-",
        "a",
        "no left or ",
        "says ",
    ],
)
def test_the_time_of_a_caption_grows_with_its_length(text: str) -> None:
    """Pins CPU-seconds of captions of 8 KB, such as lists of tags, which took minutes."""
    begun_s = time.process_time()
    check_caption((text * 8192)[:8192], panned())
    check_caption("!" + (text * 8192)[:8192], panned())
    assert time.process_time() - begun_s < 4


def test_a_long_list_of_tags_keeps_its_claims() -> None:
    tags = ", ".join(["solo", "outdoors"] * 100)
    claims = check_caption(f"{tags}, static camera, {tags[:-9]}, no sound, {tags}", panned())
    assert [(claim.kind, claim.value) for claim in claims] == [
        ("camera", "static"),
        ("sound", "not audible"),
    ]


def test_a_value_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judge(value: str, measured: Measured) -> Judgement:
        judged.append(value)
        return UNMEASURED

    kinds = tuple(replace(kind, judge=judge) for kind in KINDS if kind.name == "colour")
    monkeypatch.setattr("curator.measures.claims.claim_check.KINDS", kinds)
    assert len(check_caption("The sky is red. " * 50, panned())) == 50
    assert judged == ["red"]
