#!/usr/bin/env python3
"""Trains the weights of the shot head from footage and seeds.

    train_shot_head.py --footage FOOTAGE --work DIR [--networks 4] [--start FILE] [--out FILE]

FOOTAGE is a folder of single-shot recordings with `index.csv` (`footage_split.py`). `shot_films.py`
makes films: `STYLES` from the train part, and `TUNE_STYLES` from the tune part. The
measurements of the shot network and of `shot_head.py` stay in DIR, so a second call only fits. The
networks are fitted on the train part. The tune part gives the calibration (Platt); its films have
as many distractors as real edited films.

With `--start`, the networks continue from the weights of FILE, on a few films of each old style and
on the new styles (`CONTINUED`), fewer than a new fit takes.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from footage_split import Part
from measure import arguments, tell
from numpy.typing import NDArray
from safetensors.numpy import save_file
from shot_films import Style, Takes, make_film
from torch.nn.functional import dropout

from curator.measures.boundaries import boundary_peaks
from curator.models import shot_head
from curator.models.shot_head import (
    DILATIONS,
    HeadStream,
    HeadWeights,
    head_weights,
    log_odds,
    pair_inputs,
    run_head,
    small_pictures,
)
from curator.models.transnet import ShotNetwork, ShotStream

N_FEATURES, N_COMPONENTS = 1024, 128
PROJECTED, CHANNELS = 16, 64
DROP, DROP_FEATURES, WEIGHT_DECAY = 0.2, 0.3, 0.02
TOLERANCE_FRAMES = 2
LEAST_ODDS = float(np.log(0.4 / 0.6))
"""Log odds at the default bound of a boundary."""
STYLES: dict[Style, range] = {
    "edited": range(250), "by_hand": range(1000, 1080), "studio": range(2000, 2050),
    "short": range(3000, 3600), "held": range(9000, 9600), "returns": range(11000, 11090),
}  # fmt: skip
"""Seeds of the films for fitting."""
TIMES: dict[Style, int] = {"held": 2, "returns": 3}
"""How often an epoch repeats films, if more than once, because making films takes most time."""
TUNE_STYLES: dict[Style, range] = {"calm": range(5000, 5048), "short": range(6000, 6120)}
"""Seeds of the films for calibration."""
CONTINUED: dict[Style, range] = {
    "edited": range(16), "by_hand": range(1000, 1005), "studio": range(2000, 2005),
    "short": range(3000, 3060), "held": range(9000, 9050), "returns": range(11000, 11009),
    "effects": range(12000, 12060), "dark": range(13000, 13030), "animated": range(14000, 14050),
    "mixed": range(18000, 18030),
}  # fmt: skip
TUNE_CONTINUED: dict[Style, range] = {
    "calm": range(5000, 5010), "short": range(6000, 6024), "effects": range(15000, 15012),
    "dark": range(16000, 16008), "animated": range(17000, 17012),
}  # fmt: skip
"""Seeds of the films that continue a fit, and that calibrate the result."""


class RawHead(HeadStream):
    """Passes the network's features on; the weights of `no_head` do not change them."""

    def push(self, frames_FHWC: torch.Tensor) -> None:  # noqa: N803
        """Ignores the pictures."""

    def answer(self, answers_FD: torch.Tensor, *, is_last: bool = False) -> torch.Tensor:  # noqa: N803
        """Returns the input unchanged."""
        return answers_FD


class RawStream(ShotStream):
    """Returns the network's features."""

    def __init__(self, network: ShotNetwork) -> None:
        super().__init__(network)
        self._earlier = self._earlier._replace(head=RawHead(network.head))


def no_head() -> HeadWeights:
    """Returns weights with an identity projection."""
    zeros = torch.zeros(1, 1, 1)
    return HeadWeights(
        projection=torch.eye(N_FEATURES), projected=N_FEATURES, enter=zeros, enter_bias=zeros,
        layers=zeros, layer_biases=zeros, leave=zeros, leave_bias=zeros, calibration=(1.0, 0.0),
    )  # fmt: skip


@dataclass
class Film:
    """Measurements and labels of a film.

    Attributes:
        features: float16 [F, 1024] of the network, or float32 [F, 128], their components.
        common: float32 [F, 2 + `N_PAIR_INPUTS`].
        gaps: int64 [G, 2], half-open.
        ignored: int64 [I, 2], half-open.
        kinds: Kind of each gap.
    """

    features: NDArray[Any]
    common: NDArray[np.float32]
    gaps: NDArray[np.int64]
    ignored: NDArray[np.int64]
    kinds: list[str]

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self.features)


def network_answers(network: ShotNetwork, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Returns probabilities and features of small frames [F, 27, 48, 3], float32 [F, 2 + 1024]."""
    stream = RawStream(network)
    stream.push_batch(torch.from_numpy(frames))
    return stream._end().numpy()


def common_inputs(
    probabilities: NDArray[np.float32], frames: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Returns the inputs of all head networks except features, float32 [F, 2 + pair inputs]."""
    pictures = small_pictures(torch.from_numpy(frames))
    pair = [
        _pair_block(pictures, start, min(start + 256, len(pictures)))
        for start in range(0, len(pictures), 256)
    ]
    odds = log_odds(torch.from_numpy(probabilities))
    return torch.cat([odds, torch.cat(pair)], dim=1).float().numpy()


def _pair_block(pictures: torch.Tensor, first: int, last: int) -> torch.Tensor:
    low = max(0, first - shot_head.LOOK)
    return pair_inputs(pictures[low : last + shot_head.LOOK], first - low, last - low)


@cache
def _network() -> ShotNetwork:
    torch.set_num_threads(1)
    return ShotNetwork(head=no_head())


@cache
def _takes(footage: Path, part: Part) -> Takes:
    return Takes(footage, part)


def measure_film(footage: Path, part: Part, seed: int, style: Style, path: Path) -> Path:
    """Makes and measures one film, unless its file exists."""
    if not path.exists():
        film = make_film(_takes(footage, part), seed, style)
        raw = network_answers(_network(), film.frames)
        temporary = path.with_suffix(".tmp.npz")
        np.savez(
            temporary, frames=film.frames, probabilities=raw[:, :2],
            features=raw[:, 2:].astype(np.float16),
            gaps=np.array([gap[:2] for gap in film.gaps], np.int64).reshape(-1, 2),
            ignored=np.array(film.ignored, np.int64).reshape(-1, 2),
            kinds=np.array([gap[2] for gap in film.gaps], "U24"),
        )  # fmt: skip
        temporary.rename(path)
    return path


def as_film(
    frames: NDArray[np.uint8], probabilities: NDArray[np.float32], features: NDArray[Any]
) -> Film:
    """Returns a film without labels from small frames [F, 27, 48, 3] and the network's answers."""
    none = np.zeros((0, 2), np.int64)
    return Film(features, common_inputs(probabilities, frames), none, none, [])


def load(path: Path, basis: NDArray[np.float32] | None = None) -> Film:
    """Reads a measured film; with a basis, features are reduced to components."""
    with np.load(path) as stored:
        values = dict(stored)
    values["common"] = common_inputs(values.pop("probabilities"), values.pop("frames"))
    if basis is not None:
        values["features"] = values["features"].astype(np.float32) @ basis
    return Film(**{**values, "kinds": values["kinds"].tolist()})


def components(paths: list[Path]) -> NDArray[np.float32]:
    """Returns principal components of features, of unit variance, float32 [1024, 128]."""
    taken = []
    for path in paths:
        with np.load(path) as stored:
            taken.append(stored["features"][::8].astype(np.float32))
    values = np.concatenate(taken).astype(np.float64)
    variances, vectors = np.linalg.eigh(np.cov(values.T))
    largest = np.argsort(-variances)[:N_COMPONENTS]
    return np.asarray(vectors[:, largest] / np.sqrt(variances[largest] + 1e-6), np.float32)


def targets(film: Film) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Returns the targets middle and inside, and the weight of each frame."""
    n = film.n_frames
    middle, inside, weight = np.zeros(n), np.zeros(n), np.ones(n)
    for start, end in film.ignored.tolist():
        weight[max(0, start - 2) : end + 2] = 0
    for start, end in film.gaps.tolist():
        # The middle of a cut is the last frame before it.
        centre = (start + max(start, end - 1)) / 2 - (start == end)
        reach = 0.2 + (end - start) / 12
        near = np.arange(max(0, int(centre - reach - 1)), min(n, int(centre + reach + 2)))
        middle[near] = np.maximum(middle[near], np.clip(1 + reach - np.abs(near - centre), 0, 1))
        inside[start:end] = 1
    return (
        middle.astype(np.float32),
        inside.astype(np.float32),
        weight.astype(np.float32),
    )


class Net(torch.nn.Module):
    """The convolutional network of `shot_head.run_head`, in floating point."""

    def __init__(
        self, mean: torch.Tensor, scale: torch.Tensor, n_components: int = N_COMPONENTS
    ) -> None:
        super().__init__()
        self.mean, self.scale = mean, scale
        self.project = torch.nn.Linear(n_components, PROJECTED, bias=False)
        self.enter = torch.nn.Linear(PROJECTED + len(mean), CHANNELS)
        self.layers = torch.nn.ModuleList(
            torch.nn.Conv1d(CHANNELS, CHANNELS, 3, dilation=d, padding=d) for d in DILATIONS
        )
        self.leave = torch.nn.Linear(CHANNELS, 2)

    @torch.no_grad()
    def continue_from(self, start: HeadWeights, number: int) -> None:
        """Takes the weights of one network of a head, whose projections are the components."""
        first = number * start.projected
        self.project.weight.copy_(torch.eye(start.projection.shape[1])[first : first + PROJECTED])
        enter = start.enter[number].clone()
        self.enter.bias.copy_(start.enter_bias[number, 0] + self.mean.double() @ enter[PROJECTED:])
        enter[PROJECTED:] *= self.scale.double()[:, None]
        self.enter.weight.copy_(enter.T)
        for layer, weight, bias in zip(self.layers, start.layers, start.layer_biases, strict=True):
            assert isinstance(layer, torch.nn.Conv1d)
            assert layer.bias is not None
            layer.weight.copy_(weight[number].view(3, CHANNELS, CHANNELS).permute(2, 1, 0))
            layer.bias.copy_(bias[number, 0])
        self.leave.weight.copy_(start.leave[number].T)
        self.leave.bias.copy_(start.leave_bias[number, 0])

    def forward(
        self,
        features: torch.Tensor,
        common: torch.Tensor,
        known: torch.Tensor,
        *,
        is_training: bool = False,
    ) -> torch.Tensor:
        """Returns log odds [B, F, 2] from components [B, F, 128] and common inputs [B, F, D].

        `known` [B, F] is 1 in the film and 0 beyond its end.
        """
        projected = self.project(features)
        common = (common - self.mean) / self.scale
        if is_training:
            # Drops the features of whole windows, because few recordings are soon memorised.
            n_windows = len(features)
            projected = dropout(projected, DROP) * (torch.rand(n_windows, 1, 1) >= DROP_FEATURES)
        h = torch.relu(self.enter(torch.cat([projected, common], dim=2))) * known[:, :, None]
        h = h.transpose(1, 2)
        for layer in self.layers:
            step = torch.relu(layer(h)) * known[:, None]
            h = h + (dropout(step, DROP) if is_training else step)
        return torch.Tensor(self.leave(h.transpose(1, 2)))


def fit(
    films: list[Film], seed: int, *, epochs: int, rate: float, start: HeadWeights | None = None
) -> Net:
    """Fits one network on windows of the films, or continues that of a number in `start`."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    common = np.concatenate([film.common for film in films])
    mean, deviation = common.mean(axis=0), common.std(axis=0) + 1e-3
    n_components = films[0].features.shape[1]
    net = Net(torch.from_numpy(mean), torch.from_numpy(deviation), n_components)
    if start is not None:
        net.continue_from(start, seed)
    window, batch = 192, 24
    labels = [np.stack(targets(film), axis=1) for film in films]
    starts = [
        (number, start)
        for number, film in enumerate(films)
        for start in range(0, max(1, film.n_frames - window + 1), window // 2)
    ]
    steps = epochs * (len(starts) // batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
    lost = torch.nn.functional.binary_cross_entropy_with_logits
    done = 0
    for epoch in range(epochs):
        order = rng.permutation(len(starts))
        total = 0.0
        for first in range(0, len(order) - batch + 1, batch):
            chosen = [starts[i] for i in order[first : first + batch]]
            x, c, y, known = (np.zeros((batch, window, d), np.float32)
                              for d in (n_components, common.shape[1], 3, 1))  # fmt: skip
            for row, (number, begin) in enumerate(chosen):
                film = films[number]
                begin = max(0, min(begin + int(rng.integers(-48, 49)), film.n_frames - window))
                span = slice(begin, begin + window)
                n = len(film.features[span])
                x[row, :n], c[row, :n] = film.features[span], film.common[span]
                y[row, :n], known[row, :n] = labels[number][span], 1
            x_, c_, target, known_ = (torch.from_numpy(values) for values in (x, c, y, known))
            out = net(x_, c_, known_[..., 0], is_training=True)
            weight = target[..., 2]
            per_frame = lost(out[..., 0], target[..., 0], reduction="none") * (
                1 + 3 * target[..., 0]
            ) + 0.3 * lost(out[..., 1], target[..., 1], reduction="none")
            loss = (per_frame * weight).sum() / weight.sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            if done < steps:
                schedule.step()
            done += 1
            total += float(loss.detach())
        if epoch % 4 == 3:
            print(f"seed {seed} epoch {epoch + 1}: {total / max(1, len(order) // batch):.4f}",
                  flush=True)  # fmt: skip
    return net.eval()


_shared_films: list[Film] = []


def _share_films(films: list[Film]) -> None:
    _shared_films.extend(films)


def _fit_shared(seed: int, *, epochs: int, rate: float, start: HeadWeights | None) -> Net:
    return fit(_shared_films, seed, epochs=epochs, rate=rate, start=start)


def exported(nets: list[Net], basis: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    """Returns the weights as the package stores them, on a grid with exact sums."""

    def array(tensor: torch.Tensor | torch.nn.Module) -> NDArray[np.float64]:
        assert isinstance(tensor, torch.Tensor)
        return tensor.detach().double().numpy()

    def grid(values: NDArray[np.float64]) -> NDArray[np.int16]:
        return np.round(np.clip(values, -7.99, 7.99) * 4096).astype(np.int16)

    stored: dict[str, NDArray[Any]] = {
        "projection": np.concatenate(
            [basis @ array(net.project.weight).T for net in nets], axis=1
        ).astype(np.float16),
        "calibration": np.array([1.0, 0.0], np.float32),
    }
    enters, biases = [], []
    for net in nets:
        weight = array(net.enter.weight).T
        scaled = weight[PROJECTED:] / array(net.scale)[:, None]
        biases.append(array(net.enter.bias) - array(net.mean) @ scaled)
        enters.append(np.concatenate([weight[:PROJECTED], scaled]))
    stored["enter"], stored["enter_bias"] = grid(np.stack(enters)), _bias(biases)
    for number in range(len(DILATIONS)):
        # Conv1d holds [out, in, 3]; rows are the frames before, at and after.
        kernels = [array(net.layers[number].weight).transpose(2, 1, 0) for net in nets]
        stored[f"layer_{number}"] = grid(np.stack([k.reshape(-1, CHANNELS) for k in kernels]))
        stored[f"layer_{number}_bias"] = _bias([array(net.layers[number].bias) for net in nets])
    stored["leave"] = grid(np.stack([array(net.leave.weight).T for net in nets]))
    stored["leave_bias"] = _bias([array(net.leave.bias) for net in nets])
    return stored


def _bias(values: list[NDArray[np.float64]]) -> NDArray[np.float32]:
    return (np.round(np.stack(values)[:, None] * 4096) / 4096).astype(np.float32)


def save(stored: dict[str, NDArray[Any]], path: Path) -> HeadWeights:
    """Writes the weights, and reads them as the package does."""
    save_file({name: np.ascontiguousarray(values) for name, values in stored.items()}, path)
    head_weights.cache_clear()
    return head_weights(path)


def answers(weights: HeadWeights, film: Film) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns log odds of middle and inside, float64 [F] each."""
    projected = film.features.astype(np.float32) @ weights.projection.numpy()
    odds = film.common[:, :2].astype(np.float64)
    raw = np.concatenate([1 / (1 + np.exp(-odds)), projected], axis=1).astype(np.float32)
    pair = torch.from_numpy(film.common[:, 2:].astype(np.float64))
    middle, inside = run_head(weights, torch.from_numpy(raw), pair).T.numpy()
    return middle, inside


def gaps_at(film: Film, frame: int) -> list[int] | None:
    """Returns the gaps that a peak at a frame matches; None in an ignored span."""
    position = frame + 1
    near = TOLERANCE_FRAMES
    if any(a - near <= position <= b + near for a, b in film.ignored.tolist()):
        return None
    gaps = enumerate(film.gaps.tolist())
    return [i for i, (a, b) in gaps if a - near <= position <= b + near]


def matched(film: Film, found: list[int]) -> tuple[list[bool], list[bool]]:
    """Returns whether each peak is right and each gap is found, without ignored peaks."""
    near = [gaps for frame in found if (gaps := gaps_at(film, frame)) is not None]
    hit = {number for gaps in near for number in gaps}
    return [bool(gaps) for gaps in near], [number in hit for number in range(len(film.gaps))]


def tuned(weights: HeadWeights, films: list[Film], styles: list[Style], of: Style) -> list[int]:
    """Returns found, missed and false boundaries of one style, before both sides are compared."""
    total = np.zeros(3, np.int64)
    for film, style in zip(films, styles, strict=True):
        if style == of:
            middle, _ = answers(weights, film)
            right, hits = matched(film, boundary_peaks(middle, LEAST_ODDS).tolist())
            total += (sum(hits), len(hits) - sum(hits), len(right) - sum(right))
    return [int(n) for n in total]


def calibration(weights: HeadWeights, films: list[Film]) -> tuple[float, float]:
    """Returns slope and offset of log odds, fitted on the peaks of films without fitted weights."""
    score: list[float] = []
    right: list[bool] = []
    for film in films:
        middle, _ = answers(weights, film)
        taken: set[int] = set()
        found = boundary_peaks(middle, -6.0)
        for frame in found[np.argsort(-middle[found], kind="stable")].tolist():
            near = gaps_at(film, frame)
            # Only the highest peak in a gap counts.
            if near is not None and not taken.intersection(near):
                score.append(float(middle[frame]))
                right.append(bool(near))
                taken.update(near)
    x = torch.tensor(score, dtype=torch.float64)
    y = torch.tensor(right, dtype=torch.float64)
    fitted = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([fitted], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x * fitted[0] + fitted[1], y)
        loss.backward()
        return loss

    optimizer.step(closure)
    slope, offset = fitted.detach().tolist()
    return float(slope), float(offset)


def main() -> None:
    """Makes films, fits, calibrates, and writes and prints the results."""
    parser = arguments(__doc__)
    parser.add_argument("--footage", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--start", type=Path, help="weights to continue from")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="file of the weights; by default in DIR")
    args = parser.parse_args()
    begun_s, cpu_s = time.monotonic(), time.process_time()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted: list[tuple[Part, dict[Style, range]]] = [("train", STYLES), ("tune", TUNE_STYLES)]
    if args.start is not None:
        wanted = [("train", CONTINUED), ("tune", TUNE_CONTINUED)]
    jobs = [
        (part, seed, style, args.work / f"{part}_{seed:04d}.npz")
        for part, styles in wanted
        for style, seeds in styles.items()
        for seed in seeds
    ]
    with ProcessPoolExecutor(args.processes) as pool:
        list(pool.map(measure_film, *zip(*[(args.footage, *job) for job in jobs], strict=True)))
    paths = {part: [job[-1] for job in jobs if job[0] == part] for part in ("train", "tune")}
    start = None if args.start is None else head_weights(args.start)
    basis = components(paths["train"]) if start is None else start.projection.numpy()
    films = {
        "train": [load(path, basis) for path in paths["train"]],
        "tune": [load(path) for path in paths["tune"]],
    }
    n_frames = {part: sum(film.n_frames for film in films[part]) for part in films}
    # Forked processes share the films, even if the list repeats a film.
    times = [TIMES.get(job[2], 1) for job in jobs if job[0] == "train"]
    listed = [film for film, n in zip(films["train"], times, strict=True) for _ in range(n)]
    print(f"measured: {n_frames}, {time.monotonic() - begun_s:.0f} s, "
          f"{time.process_time() - cpu_s:.0f} CPU-s in this process", flush=True)  # fmt: skip
    # One thread each: the layers are small, and two threads would vary the order of sums.
    torch.set_num_threads(1)
    with ProcessPoolExecutor(args.processes, get_context("fork"), _share_films, (listed,)) as pool:
        how = partial(_fit_shared, epochs=args.epochs, rate=args.rate, start=start)
        nets = list(pool.map(how, range(args.networks)))
    stored = exported(nets, basis)
    out = args.out or args.work / "shot_head.safetensors"
    fitted = calibration(save(stored, out), films["tune"])
    stored["calibration"] = np.array(fitted, np.float32)
    weights = save(stored, out)
    styles = [job[2] for job in jobs if job[0] == "tune"]
    found = {style: tuned(weights, films["tune"], styles, style) for style in dict.fromkeys(styles)}
    tell(
        {
            "calibration": fitted,
            "tune": found,
            "bytes": out.stat().st_size,
            "frames": n_frames,
            "wall_s": round(time.monotonic() - begun_s),
        }
    )


if __name__ == "__main__":
    main()
