"""Measures the annotator `speech` on made mixtures: F1 of tenths of seconds with speech.

    speech.py [--mixtures 40 --seed 1] [--set tune|blind]

Needs the program `espeak-ng`. A mixture has 40 s: sentences of one voice at random times, over
silence, noise or music of its own chords, at 5 to 20 dB above it, and stretches of music or noise
alone. Voices, sentences, chords and kinds of noise are split: the settings were chosen on `tune`,
and `blind` has others. What counts as speech is what espeak-ng wrote, without pauses of more than
0.3 s within it. Values are those that the annotator stores.
"""

import subprocess
import tempfile
import wave
from fractions import Fraction
from itertools import pairwise

import numpy as np
import tests_path  # noqa: F401
from measure import arguments, tell

from curator.stage import ClipFacts, SampledClip
from curator.stages.derive.speech import Speech, SpeechConfig

RATE_HZ = 16_000
SECONDS = 40
VOICES = {
    "tune": ("en-us", "en-gb+f3", "de", "fr+m2"),
    "blind": ("en-gb-scotland", "es+f2", "it+m4", "en-us+f5", "pt"),
}
SENTENCES = {
    "tune": (
        "The train leaves the station at nine, and nobody waits for it.",
        "Put the red box on the second shelf.", "What did she say about the weather?",
        "We counted the boats in the harbour again.",
    ),
    "blind": (
        "A small dog ran across the empty street before the rain began.",
        "Close the window, please.", "How many apples are left in the basket tonight?",
        "The engineers measured the bridge twice and wrote the numbers down.",
    ),
}  # fmt: skip
CHORDS = {"tune": (220.0, 261.6, 329.6), "blind": (196.0, 246.9, 293.7)}
NOISES = {"tune": ("white", "hum"), "blind": ("pink", "rumble", "clicks")}


def spoken(voice: str, text: str) -> np.ndarray:
    """Returns a sentence by espeak-ng, float32 at 16 kHz."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        command = ["espeak-ng", "-v", voice, "-w", file.name, text]
        subprocess.run(command, check=True, capture_output=True)
        with wave.open(file.name) as read:
            rate = read.getframerate()
            data = np.frombuffer(read.readframes(read.getnframes()), "<i2") / 32768
    at = np.arange(0, len(data), rate / RATE_HZ)
    return np.interp(at, np.arange(len(data)), data).astype(np.float32)


def is_spoken(sentence: np.ndarray) -> np.ndarray:
    """Returns where a sentence has sound, with pauses of up to 0.3 s filled."""
    frame = RATE_HZ // 100
    n = len(sentence) // frame
    level = np.abs(sentence[: n * frame]).reshape(n, frame).max(1) > 0.01
    on = np.flatnonzero(level)
    for a, b in pairwise(on):
        if b - a <= 30:
            level[a:b] = True
    return np.repeat(level, frame)


def music(random: np.random.Generator, roots: tuple[float, ...], n: int) -> np.ndarray:
    """Returns chords of decaying harmonics with a beat."""
    t = np.arange(n) / RATE_HZ
    out = np.zeros(n)
    beat = int(RATE_HZ * random.uniform(0.3, 0.6))
    for start in range(0, n, beat):
        root = random.choice(roots) * random.choice([0.5, 1.0, 1.5])
        for ratio in (1.0, 1.25, 1.5, 2.0, 3.0):
            own = t[: n - start]
            out[start:] += np.sin(2 * np.pi * root * ratio * own) * np.exp(-4 * own) / ratio
    return np.asarray(out / (np.abs(out).max() + 1e-9))


def noise(random: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Returns noise of a kind, with a peak of 1."""
    white = random.standard_normal(n)
    if kind == "hum":
        t = np.arange(n) / RATE_HZ
        out = np.sin(2 * np.pi * 50 * t) + 0.5 * np.sin(2 * np.pi * 150 * t) + 0.1 * white
    elif kind == "clicks":
        out = white * (random.random(n) < 0.002)
    elif kind == "white":
        out = white
    else:
        spectrum = np.fft.rfft(white)
        power = 0.5 if kind == "pink" else 1.0
        out = np.fft.irfft(spectrum / np.maximum(1, np.arange(len(spectrum))) ** power, n)
    return np.asarray(out / (np.abs(out).max() + 1e-9))


def mixture(random: np.random.Generator, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns samples, and which of them are speech."""
    n = SECONDS * RATE_HZ
    speech, truth, at = np.zeros(n, np.float32), np.zeros(n, bool), 0
    voice = str(random.choice(VOICES[part]))
    while True:
        at += int(RATE_HZ * random.uniform(0.5, 5))
        sentence = spoken(voice, str(random.choice(SENTENCES[part])))
        if at + len(sentence) > n:
            break
        speech[at : at + len(sentence)] += sentence
        own = is_spoken(sentence)
        truth[at : at + len(own)] |= own
        at += len(sentence)
    background = np.zeros(n)
    start = 0
    while start < n:
        length = min(n - start, int(RATE_HZ * random.uniform(3, 12)))
        kind = str(random.choice(["silence", "music", *NOISES[part]]))
        if kind == "music":
            background[start : start + length] = music(random, CHORDS[part], length)
        elif kind != "silence":
            background[start : start + length] = noise(random, kind, length)
        start += length
    loud = np.sqrt((speech[truth] ** 2).mean())
    rms = np.sqrt((background**2).mean()) + 1e-9
    background *= loud / rms / 10 ** (random.uniform(5, 20) / 20)
    mixed = (speech + background).astype(np.float32)
    return mixed / max(1.0, float(np.abs(mixed).max())), truth


def main() -> None:
    """Measures one part; the last line is JSON."""
    parser = arguments(__doc__)
    parser.add_argument("--mixtures", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", choices=("tune", "blind"), default="tune", dest="part")
    options = parser.parse_args()
    random = np.random.default_rng([options.seed, options.part == "blind"])
    stage = Speech(SpeechConfig())
    stage.setup()
    counts = np.zeros(4, int)
    for number in range(options.mixtures):
        samples, truth = mixture(random, options.part)
        facts = ClipFacts(
            clip_id=f"{number:024x}", source_id="0" * 32, n_frames=SECONDS * 10, fps=Fraction(10),
            width=64, height=64, columns={"audio": "aac"},
        )  # fmt: skip
        clip = SampledClip(facts=facts, requested=(), audio=samples[None])
        ((classes, _),) = [values.values() for values in stage.process([clip])]
        found = np.asarray(classes)[:, 0].astype(np.float32) >= stage.config.threshold
        tenth = RATE_HZ // 10
        wanted = truth.reshape(-1, tenth).mean(1) >= 0.5
        counts += [
            np.sum(found & wanted), np.sum(found & ~wanted), np.sum(~found & wanted),
            np.sum(~found & ~wanted),
        ]  # fmt: skip
    hits, false, missed, _ = counts.tolist()
    tell(
        {
            "set": options.part, "mixtures": options.mixtures,
            "f1": round(2 * hits / (2 * hits + false + missed), 4),
            "precision": round(hits / (hits + false), 4),
            "recall": round(hits / (hits + missed), 4),
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
