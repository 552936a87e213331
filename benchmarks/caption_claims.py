"""Measures the claims of captions (`curator.measures.claims`) on made films and on real clips.

    python benchmarks/caption_claims.py make FOLDER              # films with known truth, analyzed
    python benchmarks/caption_claims.py run FOLDER [--words fresh] [--films fresh]
    python benchmarks/caption_claims.py real MEDIA FOLDER [--list]

`run` composes captions from the wordings of `caption_claims_templates.yaml`: for each film, true
captions, and captions with one false claim. `real` checks captions that were written by hand
(`caption_claims_real.yaml`); MEDIA has the folders `media` and `footage`. FOLDER keeps tracks.

A contradiction is *found* if the claim of its kind in the false sentence has the verdict
`contradicted`. A *false contradiction* is any such verdict on a true claim.
"""

import argparse
import json
import pickle
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from film_makers import write_video
from film_shots import texture
from moving_cameras import signals_of

from curator.measures.camera import camera_tags
from curator.measures.claims.claim_check import KINDS, check_caption
from curator.measures.claims.claim_records import Measured, Verdict
from curator.measures.clip_view import ClipView
from curator.measures.score_list import Measures
from curator.records.clips import Span
from curator.records.tracks import Track
from curator.stages.analyze.config import AnalyzeConfig
from curator.stages.analyze.decode_source import analyze_source
from curator.stages.analyze.families import families_of
from curator.stages.analyze.measurer import AnalysisModels
from curator.stages.analyze.stage import load_analysis_models

HERE = Path(__file__).parent
FPS = 15
TUNED = (range(50), range(100, 130), *(range(n, n + 30) for n in (1000, 2000, 3000, 4000)))
FILMS = {"development": tuple(chain(*TUNED)), "fresh": range(5000, 5030)}
"""Seeds of films. `fresh` ones were not looked at while patterns and bounds were set."""
CAPTIONS_A_FILM = 34
MOVES = {
    "static": (0, 0, 0, 0), "pan_left": (-0.12, 0, 0, 0), "pan_right": (0.12, 0, 0, 0),
    "tilt_up": (0, 0.1, 0, 0), "tilt_down": (0, -0.1, 0, 0), "zoom_in": (0, 0, 0.12, 0),
    "zoom_out": (0, 0, -0.12, 0), "roll": (0, 0, 0, 8),
}  # fmt: skip
"""Velocities: pan and tilt in short sides/s, zoom in 1/s, roll in degrees/s."""
COLOURS = {
    "red": (200, 30, 30), "green": (40, 150, 50), "blue": (40, 70, 200), "yellow": (235, 215, 50),
    "purple": (130, 50, 170), "orange": (240, 130, 20), "brown": (120, 75, 40),
    "pink": (250, 150, 190), "grey": (125, 125, 125), "black": (16, 16, 16),
    "white": (245, 245, 245),
}  # fmt: skip
NEAR = {
    "red": "orange brown pink purple", "orange": "red yellow brown pink",
    "yellow": "orange brown green", "green": "yellow", "blue": "purple",
    "purple": "blue pink red", "brown": "red orange yellow black grey",
    "pink": "red purple white orange", "grey": "white black blue brown", "black": "grey brown",
    "white": "grey pink",
}  # fmt: skip
"""Colours that people may confuse, so that no caption claims one for the other."""
TEXTS = ("SUMMER SALE", "OPEN DAY", "HELLO WORLD", "NEWS AT TEN", "EXIT", "GAME OVER")
SIZES = {"landscape": (432, 240), "portrait": (240, 432), "square": (256, 256)}
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """The full truth about a made film."""

    seed: int
    move: str
    then: str | None
    background: str
    light: str
    shape: str
    colour: str
    count: int
    text: str | None
    cut: bool
    sound: bool
    fade: str | None
    orientation: str
    seconds: int
    is_still: bool


def film_of(seed: int) -> Film:
    """Draws a film; a film has one of the rare properties at most, so that truth stays simple."""
    rng = random.Random(seed)
    rare = rng.choices(("", "order", "cut", "fade", "still"), (6, 3, 3, 2, 2))[0]
    light = rng.choices(("normal", "dark", "bright", "mono"), (6, 3, 2, 1))[0]
    background = rng.choice(sorted(COLOURS))
    background = {
        "bright": "white",
        "dark": rng.choice(("blue", "brown", "grey")),
        "mono": "grey",
    }.get(light, background)
    move = "static" if rare == "still" else rng.choice(sorted(MOVES))
    pairs = [m for m in MOVES if m not in ("static", "roll")]
    then = None
    if rare == "order":
        move, then = rng.sample(pairs, 2)
    allowed = [
        c for c in ("red", "green", "blue", "yellow") if c not in f"{background} {NEAR[background]}"
    ]
    return Film(
        seed=seed, move=move, then=then, background=background, light=light,
        shape=rng.choice(("circles", "squares")),
        colour="white" if light in ("dark", "mono") else rng.choice(allowed),
        count=rng.randint(1, 6), text=rng.choice((None, rng.choice(TEXTS))), cut=rare == "cut",
        sound=rng.random() < 0.5,
        fade=rng.choice(("fade_in", "fade_out")) if rare == "fade" else None,
        orientation=rng.choice(sorted(SIZES)), seconds=6 if then else rng.choice((3, 4, 5)),
        is_still=rare == "still",
    )  # fmt: skip


def _world(film: Film, seed: int, background: str) -> NDArray[np.float32]:
    clouds = texture(seed, width_px=1500, height_px=1500).mean(axis=2).astype(np.float32)
    tiles = np.random.default_rng(seed).uniform(0, 1, (75, 75)).astype(np.float32)
    cells = cv2.GaussianBlur(
        cv2.resize(tiles, (1500, 1500), interpolation=cv2.INTER_NEAREST), (0, 0), 1
    )
    grain = 0.3 * (clouds - clouds.min()) / np.ptp(clouds) + 0.7 * cells
    span = {"white": (0.75, 1.04), "black": (0.3, 2.2)}.get(background, (0.6, 1.25))
    gain = span[0] + (span[1] - span[0]) * grain
    base = np.array(COLOURS[background], np.float32)
    if film.light == "dark":
        base = base * 0.35
    return np.asarray(np.clip(gain[..., None] * base, 0, 255), np.float32)


def frames_of(film: Film) -> Iterator[NDArray[np.uint8]]:
    """Yields the frames of a film, uint8 RGB."""
    width, height = SIZES[film.orientation]
    short, n_frames = min(width, height), film.seconds * FPS
    worlds = [_world(film, film.seed, film.background)]
    if film.cut:
        other = next(c for c in COLOURS if c not in f"{film.background} {NEAR[film.background]}")
        worlds.append(_world(film, film.seed + 7919, other))
    rng = np.random.default_rng(film.seed)
    columns = rng.permutation(8)[: film.count]
    centres = np.stack([(columns % 4 + 0.5) / 4 * width, (columns // 4 + 0.75) / 3 * height], 1)
    drift = rng.uniform(-1, 1, 2) * (0 if film.is_still else 0.01 * short)
    size = 0.06 * short
    position, scale, angle = np.array([750.0, 750.0]), 1.0, 0.0
    paint = np.array(COLOURS[film.colour])
    for number in range(n_frames):
        later = film.then is not None and number >= n_frames // 2
        pan, tilt, zoom, roll = MOVES[film.then if later and film.then else film.move]
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        position = position + turn @ np.array([pan, -tilt]) * short / FPS / scale
        scale, angle = scale * np.exp(zoom / FPS), angle + np.radians(roll) / FPS
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        to_world = np.zeros((2, 3))
        to_world[:, :2] = turn / scale
        to_world[:, 2] = position - to_world[:, :2] @ np.array([width, height]) / 2
        world = worlds[int(film.cut and number >= n_frames // 2)]
        picture = cv2.warpAffine(
            world, to_world, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT_101,
        )  # fmt: skip
        picture = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
        for centre in centres + drift * number / FPS:
            x, y = (float(v) for v in centre)
            if film.shape == "circles":
                cv2.circle(
                    picture, (round(x), round(y)), round(size), paint.tolist(), -1, cv2.LINE_AA
                )
            else:
                corners = [round(v) for v in (x - size, y - size, x + size, y + size)]
                cv2.rectangle(picture, corners[:2], corners[2:], paint.tolist(), -1)
        if film.text is not None:
            place, font = (10, round(height * 0.14)), cv2.FONT_HERSHEY_SIMPLEX
            for ink, thick in (((0, 0, 0), 7), ((255, 255, 255), 2)):
                cv2.putText(picture, film.text, place, font, short / 240, ink, thick, cv2.LINE_AA)
        if film.fade is not None:
            from_end = number if film.fade == "fade_in" else n_frames - 1 - number
            picture = np.rint(picture * min(1.0, from_end / FPS)).astype(np.uint8)
        yield np.asarray(picture, np.uint8)


_CONFIG = AnalyzeConfig(scenes=False)


def models() -> AnalysisModels:
    """Loads the networks of the default analysis."""
    return load_analysis_models(_CONFIG, {f.name for f in families_of(_CONFIG)}, None, None)


def analyzed(path: Path, analysis: AnalysisModels) -> Track:
    """Returns the track of a file."""
    with path.open("rb") as reader:
        return analyze_source(
            reader, str(path), source_id=path.name, n_bytes=path.stat().st_size,
            analysis_models=analysis, config=_CONFIG, decoder_threads=1,
        )  # fmt: skip


def measured_of(track: Track, start_s: float = 0.0, end_s: float | None = None) -> Measured:
    """Returns what is stored about a span of a track, as the annotator reads it."""
    times = (track.frame_pts - track.frame_pts[0]) * float(track.time_base)
    first = int(np.searchsorted(times, start_s))
    last = track.n_frames if end_s is None else int(np.searchsorted(times, end_s))
    span = Span(start_frame=first, end_frame=last, shot=0)
    view = ClipView(track, span)
    n_px = view.size
    shown = np.flatnonzero(view.holds(track.thumbnail_frame))
    signals = {name: values[first:last] for name, values in signals_of(track).items()}
    for name in ("luma_mean", "boundary_probability"):
        signals[name] = getattr(track, name)[first:last]
    # As for scores, a sample counts if both of its frames are in the clip.
    outside = (signals["sample_s"] < times[first]) | (
        signals["sample_pair_s"] >= times[last - 1] + 0.01
    )
    for name in [*track.signals, "sample_s"]:
        signals[name] = np.where(outside, np.nan, signals[name]).astype(np.float32)
    return Measured(
        scores=Measures.of(()).score_clip(track, span, {}), tags=camera_tags(view),
        seconds=view.seconds, width=n_px[0], height=n_px[1], signals=signals,
        thumbnails=tuple(track.thumbnails[number] for number in shown.tolist()),
    )  # fmt: skip


def make(folder: Path, films: str) -> None:
    """Writes and analyzes films; keeps those that exist."""
    folder.mkdir(parents=True, exist_ok=True)
    analysis = models()
    for seed in FILMS[films]:
        place = folder / f"{seed:03}.pickle"
        if place.exists():
            continue
        film, path = film_of(seed), folder / f"{seed:03}.mp4"
        tone = float(film.seconds) if film.sound else None
        write_video(
            path, frames_of(film), fps=Fraction(FPS), options={"crf": "20"}, audio_tone_s=tone
        )
        place.write_bytes(pickle.dumps((film, analyzed(path, analysis))))
        path.unlink()


Truth = dict[str, tuple[str, dict[str, Any]]]
"""Value and words for placeholders, by kind of template."""


def truth_of(
    film: Film, rng: random.Random
) -> list[tuple[str, str, str, dict[str, str], dict[str, str]]]:
    """Returns kind, true and false value, and placeholders of both for the facts of a film."""
    rows: list[tuple[str, str, str, dict[str, str], dict[str, str]]] = []
    if film.then is None:
        other = rng.choice([m for m in MOVES if m != film.move])
        rows.append(("camera", film.move, other, {}, {}))
    rows.append(("shots", *(("cut", "none") if film.cut else ("none", "cut")), {}, {}))
    if film.then is not None:
        a, b = film.move, film.then
        rows.append(("order", "sequence", "sequence", {"a": a, "b": b}, {"a": b, "b": a}))
    if film.fade is not None:
        other = "fade_out" if film.fade == "fade_in" else "fade_in"
        rows.append(("order", film.fade, other, {}, {}))
    elif film.light == "bright" or (film.light == "normal" and not film.cut):
        rows.append(("order", "", rng.choice(("fade_in", "fade_out")), {}, {}))
    if film.light in ("normal", "bright") and not film.cut and film.fade is None:
        near = f"{film.background} {film.colour} {NEAR[film.background]} white black"
        far = [c for c in COLOURS if c not in near.split() and (film.text is None or c != "black")]
        rows.append(
            (
                "colour",
                "background",
                "background",
                {"colour": film.background},
                {"colour": rng.choice(far)},
            )
        )
        if film.background not in ("grey", "black", "white"):
            rows.append(("colour", "", "monochrome", {}, {}))
    if film.light == "mono" and not film.cut:
        far = [c for c in ("red", "green", "blue", "yellow", "purple")]
        rows.append(("colour", "monochrome", "background", {}, {"colour": rng.choice(far)}))
    if (not film.fade and film.text is None) or film.colour != "white":
        wrong = rng.choice([n for n in range(1, 8) if n != film.count])
        true, false = (
            {
                "word": WORDS[n],
                "n": str(n),
                "colour": film.colour,
                "shape": film.shape if n > 1 else film.shape[:-1],
            }
            for n in (film.count, wrong)
        )
        rows.append(("count", "shapes", "shapes", true, false))
    if film.light in ("dark", "bright") and not film.fade:
        words = ("dark", "bright") if film.light == "dark" else ("bright", "dark")
        rows.append(("brightness", *words, {}, {}))
        words = ("night", "day") if film.light == "dark" else ("day", "night")
        rows.append(("daytime", *words, {}, {}))
    if film.is_still:
        rows.append(("speed", "still", "fast", {}, {}))
    elif film.move != "static":
        rows.append(("speed", "", "still", {}, {}))
    quote = {"text": film.text or rng.choice(TEXTS)}
    rows.append(
        ("text", "quote" if film.text else "none", "none" if film.text else "quote", quote, quote)
    )
    rows.append(
        ("sound", *(("audible", "silent") if film.sound else ("silent", "audible")), {}, {})
    )
    wrong_s = rng.choice([s for s in range(1, 10) if abs(s - film.seconds) >= 3])
    true, false = ({"n": str(s), "word": WORDS[s]} for s in (film.seconds, wrong_s))
    rows.append(("duration", "seconds", "seconds", true, false))
    shape = rng.choice([s for s in SIZES if s != film.orientation])
    rows.append(("orientation", film.orientation, shape, {}, {}))
    return rows


def run(folder: Path, words: str, films: str, is_listed: bool) -> None:
    """Prints recall and false contradictions on made films, by kind."""
    templates = yaml.safe_load((HERE / "caption_claims_templates.yaml").read_text())
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    n_captions: Counter[str] = Counter()
    for place in sorted(folder.glob("*.pickle")):
        film, track = pickle.loads(place.read_bytes())
        if film.seed not in FILMS[films]:
            continue
        measured = measured_of(track)
        for number in range(CAPTIONS_A_FILM):
            rng = random.Random(f"{film.seed} {number}")

            def worded(
                kind: str, value: str, fill: dict[str, str], rng: random.Random = rng
            ) -> str:
                text: str = rng.choice(templates[words][kind][value])
                moves = {
                    key: rng.choice(templates["moves"][fill[key]])
                    for key in ("a", "b")
                    if key in fill
                }
                return text.format(**fill | moves)

            rows = truth_of(film, rng)
            chosen = rng.sample(rows, min(len(rows), rng.randint(3, 5)))
            true = [
                (kind, worded(kind, value, fill)) for kind, value, _, fill, _ in chosen if value
            ]
            wrong, value, fill = next((k, v, f) for k, _, v, _, f in [chosen[number % len(chosen)]])
            noise = rng.choice(templates["noise"])
            n_captions["true"] += 1
            _count(counts, measured, [*true, ("noise", noise)], None, is_listed, film)
            kept = [(kind, text) for kind, text in true if kind != wrong]
            false = worded(wrong, value, fill)
            n_captions["with one false claim"] += 1
            _count(
                counts, measured, [*kept, (wrong, false), ("noise", noise)], false, is_listed, film
            )
    _print(counts)
    print(json.dumps({"words": words, "films": films, "captions": n_captions, "kinds": counts}))


def _count(
    counts: defaultdict[str, Counter[str]], measured: Measured, sentences: list[tuple[str, str]],
    false: str | None, is_listed: bool, film: Film,
) -> None:  # fmt: skip
    """Counts a caption. Sentences are checked one by one, so that each verdict has its sentence."""
    for kind, text in sentences:
        claims = check_caption(text, measured)
        own = [c for c in claims if c.kind == kind]
        verdicts = {c.verdict for c in own}
        name = kind
        if text == false:
            counts[name]["false"] += 1
            is_found = Verdict.CONTRADICTED in {c.verdict for c in claims}
            counts[name]["found"] += is_found
            if not is_found:
                counts[name]["missed, not read" if not own else "missed, unknown or confirmed"] += 1
                if is_listed:
                    print(
                        "missed",
                        kind,
                        repr(text),
                        [(c.kind, c.value, str(c.verdict), c.measured) for c in claims],
                        film.seed,
                    )
            continue
        counts[name]["true"] += 1
        counts[name]["confirmed"] += Verdict.CONFIRMED in verdicts
        if bad := [c for c in claims if c.verdict is Verdict.CONTRADICTED]:
            counts[name]["false contradictions"] += 1
            if is_listed:
                print(
                    "FALSE",
                    kind,
                    repr(text),
                    [(c.kind, c.value, c.measured) for c in bad],
                    film.seed,
                )


def _print(counts: defaultdict[str, Counter[str]]) -> None:
    print(
        "| kind | false claims | found | recall | true claims | confirmed | false contradictions |"
    )
    print("|---|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    for name, c in [
        *((k.name, counts[k.name]) for k in KINDS),
        ("noise", counts["noise"]),
        ("all", total),
    ]:
        recall = f"{c['found'] / c['false']:.3f}" if c["false"] else "-"
        share = c["false contradictions"] / max(c["true"], 1)
        told = f"{c['false']} | {c['found']} | {recall} | {c['true']} | {c['confirmed']}"
        print(f"| {name} | {told} | "
              f"{c['false contradictions']} ({share:.1%}) |")  # fmt: skip


_MARK = re.compile(r"<(\w+)([-+?]) ([^>]+)>")


def real(media: Path, folder: Path, is_listed: bool) -> None:
    """Prints precision and recall on captions of real clips that were written by hand."""
    folder.mkdir(parents=True, exist_ok=True)
    clips = yaml.safe_load((HERE / "caption_claims_real.yaml").read_text())
    analysis: AnalysisModels | None = None
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for clip in clips:
        place = folder / f"{re.sub(r'[^a-z0-9]+', '_', clip['clip'].lower())}.track"
        if not place.exists():
            analysis = analysis or models()
            place.write_bytes(pickle.dumps(analyzed(media / clip["clip"], analysis)))
        measured = measured_of(pickle.loads(place.read_bytes()), *map(float, clip["seconds"]))
        for marked in (clip["right"], clip["wrong"]):
            for kind, name, event in _matches(marked, measured):
                counts[kind][name] += 1
                if is_listed and name not in ("right",):
                    print(name, clip["clip"], event)
    _print_real(counts)
    print(json.dumps(counts))


def _matches(marked: str, measured: Measured) -> Iterator[tuple[str, str, object]]:
    """Yields kind, outcome and details of each claim that is marked or read."""
    caption, truths, end = "", [], 0
    for match in _MARK.finditer(marked):
        caption += marked[end : match.start()]
        truths.append((len(caption), len(caption) + len(match[3]), match[1], match[2]))
        caption, end = caption + match[3], match.end()
    caption += marked[end:]
    claims, at = [], 0
    for claim in check_caption(caption, measured):
        found = caption.find(claim.text, at)
        found = found if found >= 0 else caption.find(claim.text)
        at = max(at, found)
        claims.append((found, found + len(claim.text), claim))
    for first, last, kind, truth in truths:
        own = [c for a, b, c in claims if a < last and first < b and c.kind == kind]
        verdicts = {c.verdict for c in own}
        told = caption[first:last], [(c.value, str(c.verdict), c.measured) for c in own]
        decided = [c.verdict for c in own if c.verdict is not Verdict.UNKNOWN]
        if truth == "?":
            yield kind, "disputed", told
        elif not decided:
            yield kind, "unknown" if own else "not read", (truth, *told)
        else:
            # One contradicted part makes the whole claim contradicted.
            says = "-" if Verdict.CONTRADICTED in verdicts else "+"
            yield kind, ("right" if says == truth else f"WRONG {truth}"), told
    for first, last, claim in claims:
        if claim.verdict is not Verdict.UNKNOWN and not any(
            a < last and first < b and (kind == claim.kind or t == "-") for a, b, kind, t in truths
        ):
            yield claim.kind, f"unmarked {claim.verdict}", asdict(claim)


def _print_real(counts: defaultdict[str, Counter[str]]) -> None:
    names = (
        "right",
        "WRONG +",
        "WRONG -",
        "unknown",
        "not read",
        "unmarked confirmed",
        "unmarked contradicted",
    )
    print("| kind | " + " | ".join(names) + " | precision | recall |")
    print("|---" * (len(names) + 3) + "|")
    total: Counter[str] = Counter()
    for each in counts.values():
        total.update(each)
    for name, c in [*sorted(counts.items()), ("all", total)]:
        wrong = c["WRONG +"] + c["WRONG -"] + c["unmarked contradicted"]
        marked = c["right"] + c["WRONG +"] + c["WRONG -"] + c["unknown"] + c["not read"]
        cells = " | ".join(str(c[each]) for each in names)
        print(
            f"| {name} | {cells} | {c['right'] / max(1, c['right'] + wrong):.3f} | "
            f"{c['right'] / max(1, marked):.3f} |"
        )


def main() -> None:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("make", "run", "real"):
        sub = commands.add_parser(name)
        if name == "real":
            sub.add_argument("media", type=Path)
        sub.add_argument("folder", type=Path)
        sub.add_argument("--list", action="store_true")
        sub.add_argument("--words", choices=("development", "fresh"), default="fresh")
        sub.add_argument("--films", choices=tuple(FILMS), default="fresh")
    options = parser.parse_args()
    if options.command == "make":
        make(options.folder, options.films)
    elif options.command == "run":
        run(options.folder, options.words, options.films, options.list)
    else:
        real(options.media, options.folder, options.list)


if __name__ == "__main__":
    main()
