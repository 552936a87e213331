"""Makes test sets with exactly known shot boundaries from single-shot recordings.

The sets share nothing with the training films of a shot head. The same recordings and the same
ffmpeg give the same films.

Shape letters: F frames, H, W height and width.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from film_frames import (
    CODECS,
    Film,
    Made,
    Pictures,
    Take,
    any_take,
    decode,
    draw,
    length_of,
    pace_of,
    paste,
    small_pictures,
    xfade_kinds,
)  # fmt: skip
from footage_split import Recording
from PIL import Image, ImageDraw, ImageFont

KIND_LENGTHS = (8, 15, 30, 45)
"""Lengths in frames of each kind of transition."""
KIND_SIDE_S = 2.6
"""Longest side of a transition in a file with one transition, in seconds."""
JUMP_LEVELS, JUMP_FACTOR = 10.0, 4.0
"""A jump within a take is visible if the picture changes by at least JUMP_LEVELS, and JUMP_FACTOR
times as much as between neighbouring frames."""

N_EDITS = 16
N_TAKES = 8
"""Files per recording in a set of takes."""
RATES = ("12", "15", "24", "25", "30000/1001", "50", "60")
SIZES = ((320, 180), (426, 240), (640, 360), (854, 480), (1280, 720))
BOXES = ("none", "letterbox", "none", "pillarbox")
DISTRACTORS = ("flash", "exposure", "picture_in_picture", "lower_third", "freeze")
JOINS = {"cut": 55, "jump": 10, "dissolve": 13, "black": 6, "white": 4, "wipe": 7, "slide": 5}
"""Frequency of each join, in percent."""
MANY_JUMPS = {
    "cut": 30, "jump": 45, "dissolve": 8, "black": 4, "white": 3, "wipe": 5, "slide": 5,
}  # fmt: skip
MOVES = {
    "dissolve": ("fade",),
    "black": ("fadeblack",),
    "white": ("fadewhite",),
    "wipe": ("wipeleft", "wiperight", "wipeup", "wipedown", "smoothleft", "smoothup", "diagtl"),
    "slide": ("slideleft", "slideright", "slideup", "slidedown"),
}
LINES = (
    "and then we went over the bridge",
    "before the rain had started",
    "nobody saw us leave",
    "What?",
    "until morning, when all the windows were open",
    "it was never there",
    "they keep asking me about the second road",
)


def make_kinds(footage: Sequence[Recording], folder: Path) -> None:
    """Makes a file per kind and length of transition, each between two random recordings."""
    write_truth(
        folder, [_one_kind(footage, folder, k, n) for k in xfade_kinds() for n in KIND_LENGTHS]
    )


def make_edits(footage: Sequence[Recording], folder: Path) -> None:
    """Makes the edited films."""
    write_truth(folder, [_edited(footage, folder, form, "edit", JOINS) for form in _forms()])


def make_jumps(footage: Sequence[Recording], folder: Path) -> None:
    """Makes films in which nearly half of the joins are cuts within a take, if visible."""
    write_truth(folder, [_edited(footage, folder, form, "jump", MANY_JUMPS) for form in _forms()])


def make_takes(footage: Sequence[Recording], folder: Path) -> None:
    """Makes single-shot files, several per recording; every detected boundary in them is false.

    They differ in rate, codec, size, bars, subtitles and repeated frames.
    """
    _make_takes(footage, folder, has_distractors=False)


def make_disturbed(footage: Sequence[Recording], folder: Path) -> None:
    """Makes single-shot files with a distractor in each."""
    _make_takes(footage, folder, has_distractors=True)


def _make_takes(footage: Sequence[Recording], folder: Path, *, has_distractors: bool) -> None:
    forms = [
        replace(form, has_distractors=has_distractors) for form in _forms(N_TAKES * len(footage))
    ]
    write_truth(folder, [_one_take(footage, folder, form) for form in forms])


def read_truth(folder: Path) -> list[Made]:
    """Returns the descriptions of the files in a folder; none if the set is incomplete."""
    path = folder / "truth.json"
    if not path.exists():
        return []
    return [
        Made(
            **row
            | {
                "labels": [(a, b, kind) for a, b, kind in row["labels"]],
                "size": tuple(row["size"]),
            }
        )
        for row in json.loads(path.read_text())
    ]


def write_truth(folder: Path, made: Sequence[Made]) -> None:
    """Writes the descriptions of the files in a folder."""
    (folder / "truth.json").write_text(json.dumps([asdict(m) for m in made], indent=1))


def _one_kind(footage: Sequence[Recording], folder: Path, kind: str, n: int) -> Made:
    rng = Random(f"kinds {kind} {n}")
    rate, (width, height) = rng.choice(("25", "30")), (640, 360)
    first, second = _two(rng, footage)
    side = round(KIND_SIDE_S * float(rate))
    before = any_take(rng, first, float(rate), n + side)
    after = any_take(rng, second, float(rate), n + 1 + side)
    film = Film(folder / f"{kind}_{n}.mp4", rate, "h264", (width, height))
    a, b = decode(before, width, height), decode(after, width, height)
    film.write(a[: len(a) - n])
    film.write_transition(a[len(a) - n - 1 :], b[: n + 1], kind, kind)
    film.write(b[n + 1 :])
    return film.close()


def _two(rng: Random, footage: Sequence[Recording]) -> tuple[Recording, Recording]:
    """Returns recordings of two different repositories; all repositories are equally likely."""
    names = sorted({clip.repository for clip in footage})
    a, b = (rng.choice([c for c in footage if c.repository == r]) for r in rng.sample(names, 2))
    return a, b


@dataclass(frozen=True, slots=True)
class _Form:
    """Format and extras of a film."""

    number: int
    rate: str
    codec: str
    size: tuple[int, int]
    box: str
    has_subtitles: bool
    repeat_every: int
    has_distractors: bool


def _forms(n: int = N_EDITS) -> list[_Form]:
    """Returns the forms of all films: rates and codecs equally often, combined at random."""
    rng = Random("forms")

    def dealt(values: Sequence[object]) -> Iterator[object]:
        hands = [values[i % len(values)] for i in range(n)]
        rng.shuffle(hands)
        return iter(hands)

    rates, codecs, sizes, boxes = dealt(RATES), dealt(CODECS), dealt(SIZES), dealt(BOXES)
    titled, repeats = dealt((True, False)), dealt((0, 5, 0))
    forms = []
    for number in range(n):
        rate, size = str(next(rates)), next(sizes)
        if rate in ("50", "60") and size == SIZES[-1]:
            size = SIZES[-2]
        forms.append(
            _Form(
                number=number,
                rate=rate,
                codec=str(next(codecs)),
                size=size,  # type: ignore[arg-type]
                box=str(next(boxes)),
                has_subtitles=bool(next(titled)),
                repeat_every=int(str(next(repeats))),
                has_distractors=number % 2 == 1,
            )
        )
    return forms


@dataclass(slots=True)
class _Shot:
    """A planned shot: frames of a join before and after its own frames, and the join after it."""

    take: Take
    lead: int
    tail: int
    join: str = "end"


def _edited(
    footage: Sequence[Recording], folder: Path, form: _Form, name: str, joins: dict[str, int]
) -> Made:
    rng = Random(f"{name} {form.number}")
    rate = _number(form.rate)
    n_frames = round(rng.uniform(30, 60) * rate)
    shots = _plan(rng, footage, rate, n_frames, joins)
    film = _film(rng, folder / f"{name}_{form.number:02d}", form, n_frames)
    before: Pictures | None = None
    for shot, last in zip(shots, [None, *shots], strict=False):
        pictures = decode(shot.take, *film.inner)
        if form.has_distractors and rng.random() < 0.6:
            pictures = distracted(rng, pictures, (shot.lead, shot.tail), rate, footage)
        if last is not None and before is not None:
            if last.tail:
                tail, move = before[len(before) - last.tail - 1 :], rng.choice(MOVES[last.join])
                film.write_transition(tail, pictures[: last.tail + 1], move, last.join)
            else:
                film.mark(0, last.join)
        film.write(pictures[shot.lead : len(pictures) - shot.tail])
        before = pictures
    return film.close()


def _one_take(footage: Sequence[Recording], folder: Path, form: _Form) -> Made:
    recording = footage[form.number // N_TAKES]
    rng = Random(f"take {form.number}")
    rate = _number(form.rate)
    take = any_take(rng, recording, rate, length_of(recording, pace_of(recording, rate)))
    film = _film(rng, folder / f"{recording.path.stem}_{form.number}", form, take.n_frames)
    pictures = decode(take, *film.inner)
    if form.has_distractors:
        pictures = distracted(rng, pictures, (0, 0), rate, footage)
    film.write(pictures)
    return film.close()


def _film(rng: Random, path: Path, form: _Form, n_frames: int) -> Film:
    """Returns a new film of a form; `path` has no suffix."""
    inner = width, height = form.size
    if form.box == "letterbox":
        inner = width, round(width / 2.39 / 2) * 2
    elif form.box == "pillarbox":
        inner = round(height * 4 / 3 / 2) * 2, height
    notes = [form.box] if form.box != "none" else []
    notes += ["subtitles"] * form.has_subtitles + ["repeated frames"] * bool(form.repeat_every)
    rate = _number(form.rate)
    return Film(
        path.with_name(f"{path.name}.{'webm' if form.codec == 'vp9' else 'mp4'}"),
        form.rate,
        form.codec,
        form.size,
        inner=inner,
        repeat_every=form.repeat_every,
        subtitles=list(_subtitles(rng, rate, n_frames)) if form.has_subtitles else (),
        extras=notes + ["distractors"] * form.has_distractors,
    )


def _number(rate: str) -> float:
    above, _, below = rate.partition("/")
    return int(above) / int(below or 1)


def _plan(
    rng: Random,
    footage: Sequence[Recording],
    rate: float,
    n_frames: int,
    joins: dict[str, int],
) -> list[_Shot]:
    """Plans shots of 0.7 to 7 s, up to about `n_frames`."""
    shots: list[_Shot] = []
    at = 0
    while not shots or shots[-1].join != "end":
        join = rng.choices(list(joins), list(joins.values()))[0]
        body = round(rate * 0.7 * 10 ** rng.uniform(0, 1))
        is_last = at + body >= n_frames
        tail = 0
        if join in MOVES and not is_last:
            tail = max(3, round(rng.uniform(0.2, 1.5) * rate))
        last = shots[-1] if shots else None
        shot = None
        if last is not None and last.join == "jump":
            shot = _jump(rng, last.take, rate, body, tail)
            last.join = "jump" if shot is not None else "cut"
        if shot is None:
            lead = last.tail + 1 if last is not None and last.tail else 0
            others = [c for c in footage if last is None or c.path != last.take.recording.path]
            shot = _shot(rng, others, rate, (lead, body, tail))
        shot.join = "end" if is_last else join
        shots.append(shot)
        at += shot.take.n_frames - shot.lead
    return shots


def _shot(
    rng: Random, footage: Sequence[Recording], rate: float, frames: tuple[int, int, int]
) -> _Shot:
    """Returns a shot of another recording; it is shorter than wanted if the recording is."""
    lead, body, tail = frames
    least = lead + round(0.7 * rate) + tail
    fitting = [c for c in footage if length_of(c, pace_of(c, rate)) >= least]
    repository = rng.choice(sorted({c.repository for c in fitting}))
    recording = rng.choice([c for c in fitting if c.repository == repository])
    return _Shot(any_take(rng, recording, rate, lead + body + tail), lead, tail)


def _jump(rng: Random, last: Take, rate: float, body: int, tail: int) -> _Shot | None:
    """Returns a shot from another time of the same take, if the jump is visible; else None."""
    small = small_pictures(last.recording.path)
    ended = last.frames()[-1]
    for _ in range(12):
        take = any_take(rng, last.recording, rate, body + tail)
        steps = np.abs(np.diff(small[[ended - 1, ended, *take.frames()[:2]]], axis=0))
        before, jump, after = steps.mean(axis=(1, 2)).tolist()
        is_away = abs(take.first - ended) > 0.5 * last.recording.fps
        is_long = take.n_frames - tail >= 0.7 * rate
        if is_away and is_long and jump > max(JUMP_LEVELS, JUMP_FACTOR * max(before, after)):
            return _Shot(take, 0, tail)
    return None


def _subtitles(rng: Random, rate: float, n_frames: int) -> Iterator[tuple[int, int, str]]:
    """Yields subtitles at times that are independent of the shots."""
    at = rng.uniform(0, 2)
    while at * rate < n_frames:
        length = rng.uniform(1.2, 3.5)
        yield round(at * rate), round((at + length) * rate), rng.choice(LINES)
        at += length + rng.choice((0.1, 0.5, 2.0))


def distracted(
    rng: Random,
    pictures: Pictures,
    ends: tuple[int, int],
    rate: float,
    footage: Sequence[Recording],
) -> Pictures:
    """Adds a distractor to a shot, well within its own frames; `ends` are its joins' lengths."""
    margin = round(0.4 * rate)
    first, last = ends[0] + margin, len(pictures) - ends[1] - margin
    if last - first < 0.6 * rate:
        return pictures
    start = rng.randint(first, last - round(0.5 * rate))
    end = rng.randint(start + round(0.4 * rate), last)
    kind = rng.choice(DISTRACTORS)
    if kind == "freeze":
        stands = min(end - start, round(1.2 * rate))
        places = [i if i < start else max(start, i - stands) for i in range(len(pictures))]
        return pictures[places]
    changed = Pictures(pictures.flat.copy(), pictures.width, pictures.height)
    if kind == "flash":
        _flash(rng, changed[start : start + rng.randint(1, 3)])
    elif kind == "exposure":
        luma = changed[start:].planes()[0]
        luma[:] = ((luma - 16.0) * rng.choice((0.6, 0.75, 1.3, 1.6)) + 16).clip(16, 235)
    elif kind == "picture_in_picture":
        _inset(rng, changed[start:end], rate, footage)
    else:
        _lower_third(rng, changed[start:end])
    return changed


def _flash(rng: Random, pictures: Pictures) -> None:
    luma, *chroma = pictures.planes()
    light = rng.uniform(0.6, 1.0) * 0.6 ** np.arange(len(luma))[:, None, None]
    luma[:] = luma + (235.0 - luma.clip(0, 235)) * light
    for plane in chroma:
        plane[:] = plane + (128.0 - plane) * light * 0.8


def _inset(rng: Random, pictures: Pictures, rate: float, footage: Sequence[Recording]) -> None:
    width, height = pictures.width // 6 * 2, pictures.height // 6 * 2
    take = any_take(rng, rng.choice(footage), rate, len(pictures))
    shown = decode(take, width, height)
    shown = shown[[min(i, len(shown) - 1) for i in range(len(pictures))]]
    x = rng.choice((8, pictures.width - width - 8))
    y = rng.choice((8, pictures.height - height - 8))
    paste(pictures, shown, x // 2 * 2, y // 2 * 2)


def _lower_third(rng: Random, pictures: Pictures) -> None:
    """Draws a coloured bar with a name that slides in from the left, or appears at once."""
    width, height = rng.randint(6, 9) * pictures.width // 20 * 2, pictures.height // 12 * 2
    bar = Pictures(np.empty((1, width * height * 3 // 2), np.uint8), width, height)
    for plane, level in zip(bar.planes(), rng.sample((40, 90, 170, 200), 3), strict=True):
        plane[:] = level
    image = Image.new("L", (width, height))
    font = ImageFont.load_default(size=max(10, height // 2))
    ImageDraw.Draw(image).text(
        (height // 2, height // 2), rng.choice(LINES), 255, font, anchor="lm"
    )
    draw(bar, np.asarray(image, np.float32) / np.float32(255))
    slides, y = rng.choice((1, 8)), pictures.height * 3 // 4 // 2 * 2
    for i in range(len(pictures)):
        shown = max(2, width * min(slides, i + 1) // slides // 2 * 2)
        for step, below, above in zip(
            (1, 2, 2), pictures[i : i + 1].planes(), bar.planes(), strict=True
        ):
            rows = slice(y // step, (y + height) // step)
            below[:, rows, : shown // step] = above[:, :, (width - shown) // step :]
