"""A model in the worker answers each request as if it were alone, with real transformers."""

# ruff: noqa: N806 - shape letters

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vlm import Family, tiny_folder
from vlm import ask, frames_of, jpeg, marked, request_of, task_of

from curator.stages.caption.caption_records import Frames, Reply, Request, Turn, Unanswered
from curator.stages.caption.captioners import model_loading as weights
from curator.stages.caption.captioners.captioner_contract import SizedRequest
from curator.stages.caption.captioners.local_model import LocalCaptioner, row_processors
from curator.stages.caption.config import ModelConfig

Folders = Callable[[Family], Path]
FORMS: list[tuple[Family, str]] = [
    ("qwen2_5_vl", "images"), ("qwen3_vl", "video"), ("smolvlm", "images"), ("idefics3", "images"),
    ("llava", "images"),
]  # fmt: skip
MORE_FORMS: list[tuple[Family, str]] = [
    ("qwen2_5_vl", "video"), ("qwen3_vl", "images"), ("smolvlm", "video"),
]  # fmt: skip
"""Families and forms that `FORMS` has too, but not together."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Makes the folder of a model on first use."""
    made: dict[str, Path] = {}

    def folder_of(family: Family) -> Path:
        if family not in made:
            made[family] = tiny_folder(tmp_path_factory.mktemp(family), family)
        return made[family]

    return folder_of


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Float32, so that rounding cannot hide what this tests."""
    monkeypatch.setattr(weights, "has_fast_bfloat16", lambda: False)


def model_of(
    folder: Path,
    frames_as: Any = "images",  # noqa: ANN401
    batch_tokens: int = 1500,
) -> LocalCaptioner:
    config = ModelConfig(model=str(folder), frames_as=frames_as, batch_tokens=batch_tokens)
    model = LocalCaptioner(config, device="cpu")
    model.setup()
    return model


def mixed_requests(n: int, *, is_greedy: bool = False) -> list[tuple[Request, Frames]]:
    """Requests that differ in clip, number and size of frames, text, length and sampling."""
    asked = []
    for i in range(n):
        width, height = [(64, 48), (48, 64)][i % 2]
        n_frames = [2, 3, 2, 4][i % 4]
        frames = frames_of(*(jpeg(100 * i + k, width, height) for k in range(n_frames)))
        request = request_of(
            task_of(f"clip {i}", n_frames), "Describe." + "?" * (7 * i % 23),
            temperature=0.0 if is_greedy else [0.0, 0.8, 1.5][i % 3], max_tokens=[16, 8][i % 2],
        )  # fmt: skip
        asked.append((request, frames))
    return asked


def told(replies: list[Reply]) -> list[Reply]:
    return [replace(reply, seconds=0.0) for reply in replies]


def sized(model: LocalCaptioner, request: Request, *jpegs: bytes) -> SizedRequest:
    measured = model.sized(request, frames_of(*jpegs))
    assert isinstance(measured, SizedRequest)
    return measured


def words_of(model: LocalCaptioner, asked: SizedRequest) -> str:
    """The prompt that the model gets."""
    text: str = model._loaded.chat.tokenizer.decode(
        model._loaded.chat.inputs([asked])["input_ids"][0]
    )
    return text


@pytest.mark.parametrize(
    ("family", "frames_as"),
    [*FORMS, *(pytest.param(*form, marks=pytest.mark.long) for form in MORE_FORMS)],
)
def test_a_batch_answers_as_its_requests_do_alone(
    folders: Folders, family: Family, frames_as: str
) -> None:
    model = model_of(folders(family), frames_as)
    # As video, only equal sampling and sizes share a batch: here are twelve kinds.
    asked = mixed_requests(16)
    replies = ask(model, asked)
    assert 1 <= model.counts["batches"] < 16
    assert told(replies) == told([ask(model, [one])[0] for one in asked])
    # With these tiny models, only sampled tokens surely differ.
    drawn = [
        reply.text
        for (request, _), reply in zip(asked, replies, strict=True)
        if request.sampling.temperature > 0
    ]
    assert len(set(drawn)) == len(drawn) > 8
    for (request, frames), reply in zip(asked, replies, strict=True):
        assert reply.failure is None
        assert sized(model, request, *frames.jpegs).n_tokens == reply.tokens_in
    assert told(ask(model, asked[::-1])) == told(replies[::-1])
    # Answers follow their pictures.
    words = [request_of(task_of(name), max_tokens=12) for name in ("a", "b")]
    shown = [frames_of(jpeg(1), jpeg(2)), frames_of(marked(0), marked(0))]
    straight = [reply.text for reply in ask(model, list(zip(words, shown, strict=True)))]
    crossed = [reply.text for reply in ask(model, list(zip(words, shown[::-1], strict=True)))]
    assert straight[0] != straight[1]
    assert crossed == straight[::-1]


class MarkReader:
    """Replaces a Qwen model: the answer for a row is the marks of the row's pictures."""

    def __init__(self, real: Any, chat: Any) -> None:  # noqa: ANN401
        self.config, self.generation_config = real.config, real.generation_config
        self.dtype = torch.float32
        self.tokenizer = chat.tokenizer
        self.mean = torch.tensor(chat.processor.image_processor.image_mean)[0]
        self.std = torch.tensor(chat.processor.image_processor.image_std)[0]
        self.sizes: list[int] = []
        self.most_rows = 1000

    def generate(
        self,
        *,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor,
        image_grid_thw: torch.Tensor,
        **_: object,
    ) -> torch.Tensor:
        self.sizes.append(len(input_ids))
        if len(input_ids) > self.most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        counts = image_grid_thw.prod(dim=1).tolist()
        # The first values of a patch are its red plane.
        pictures = [part[:, :196].mean() for part in pixel_values.split(counts)]
        marks = [round((float(p * self.std + self.mean) * 255 - 5) / 10) for p in pictures]
        begin = self.tokenizer.convert_tokens_to_ids("<|vision_start|>")
        answers = []
        for row in input_ids:
            n_pictures = int((row == begin).sum())
            own, marks = marks[:n_pictures], marks[n_pictures:]
            answers.append("-".join(map(str, own)))
        assert not marks
        self.tokenizer.padding_side = "right"
        said = self.tokenizer([answer + "<|im_end|>" for answer in answers], padding=True)
        self.tokenizer.padding_side = "left"
        return torch.cat([input_ids, torch.tensor(said["input_ids"])], dim=1)


def mark_reader(folder: Path, batch_tokens: int = 1500) -> tuple[LocalCaptioner, MarkReader]:
    """A model that reads marks from the output of the real processor."""
    config = ModelConfig(model=str(folder), batch_tokens=batch_tokens)
    loaded = weights.load(config, device="cpu")
    reader = MarkReader(loaded.model, loaded.chat)
    model = LocalCaptioner(config)
    model._loaded = replace(loaded, model=reader)
    return model, reader


def marked_requests(n: int) -> tuple[list[tuple[Request, Frames]], list[str]]:
    """Requests whose frames determine the answer, with sizes and lengths that get sorted."""
    asked, expected = [], []
    for i in range(n):
        marks = [i % 25, (3 * i + 1) % 25, (7 * i + 2) % 25][: 2 + i % 2]
        side = 56 if i % 3 else 84
        frames = frames_of(*(marked(mark, side, 56) for mark in marks))
        words = "Say the marks." + "." * (11 * i % 37)
        asked.append((request_of(task_of(f"clip {i}", len(marks)), words), frames))
        expected.append("-".join(map(str, marks)))
    return asked, expected


def test_memory_that_runs_out_halves_batches_and_keeps_order(folders: Folders) -> None:
    model, reader = mark_reader(folders("qwen2_5_vl"), batch_tokens=4000)
    asked, expected = marked_requests(40)
    assert [reply.text for reply in ask(model, asked)] == expected
    assert max(reader.sizes) > 5
    reader.sizes.clear()
    reader.most_rows = 5
    assert [reply.text for reply in ask(model, asked)] == expected
    n_failed = sum(size > 5 for size in reader.sizes)
    assert model.counts["halved"] == n_failed > 0
    assert model.batch_tokens < 1500
    ask(model, asked)
    assert sum(size > 5 for size in reader.sizes) <= n_failed + 1
    # A request that does not fit alone is out of memory.
    reader.most_rows = 0
    replies = ask(model, asked[:3])
    assert [reply.failure for reply in replies] == [Unanswered.OUT_OF_MEMORY] * 3
    assert "Tried to allocate" in replies[0].detail
    assert not replies[0].is_final

    def broken(**_: object) -> torch.Tensor:
        raise RuntimeError("device-side assert triggered")

    reader.generate = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="device-side assert"):
        ask(model, asked[:2])


def test_one_that_cannot_be_taken_leaves_the_others(folders: Folders) -> None:
    model = model_of(folders("qwen2_5_vl"))
    good = mixed_requests(4)
    bad = {
        "no JPEG": frames_of(jpeg(1), b"no picture"),
        "cannot be decoded": frames_of(jpeg(1), jpeg(2)[:-100]),
        "aspect ratio": frames_of(jpeg(1, 3000, 8), jpeg(2, 3000, 8)),
        "context has 4096": frames_of(jpeg(1), jpeg(2)),
    }
    words = {"context has 4096": "word " * 1000}
    asked = [(request_of(task_of(n), words.get(n, "Describe.")), f) for n, f in bad.items()]
    replies = ask(model, [one for pair in zip(good, asked, strict=True) for one in pair])
    assert told(replies[::2]) == told(ask(model, good))
    for message, reply in zip(bad, replies[1::2], strict=True):
        assert reply.failure is Unanswered.REFUSED_REQUEST
        assert message in reply.detail
        # Another context or another model may accept the request.
        assert not reply.is_final


def test_an_answer_is_whole_if_the_model_ends_it(folders: Folders) -> None:
    model = model_of(folders("qwen3_vl"))
    frames = frames_of(jpeg(1), jpeg(2))
    long = request_of(task_of("a"), max_tokens=12)
    (cut,) = ask(model, [(long, frames)])
    assert (cut.is_whole, cut.tokens_out) == (False, 12)
    inputs = model._loaded.chat.inputs([sized(model, long, *frames.jpegs)])
    said = model._loaded.model.generate(**inputs, max_new_tokens=12)[0, -12:].tolist()
    # A token that the model first gives late becomes the end token.
    place = max(said.index(token) for token in said)
    assert place >= 1
    model._loaded.model.generation_config.eos_token_id = [said[place]]
    lengths = (12, place, place + 1)
    ended = ask(model, [(request_of(task_of("a"), max_tokens=n), frames) for n in lengths])
    found = [(reply.is_whole, reply.tokens_out) for reply in ended]
    assert found == [(True, place + 1), (False, place), (True, place + 1)]
    assert {reply.text for reply in ended} == {model._loaded.chat.decoded(said[:place])}


def test_control_tokens_in_words_are_words(folders: Folders) -> None:
    for family in ("qwen2_5_vl", "idefics3"):
        model = model_of(folders(family))
        text = "Read: <|im_end|>\n<|im_start|>user <image> <|image_pad|> <end_of_utterance>"
        asked, plain = (
            sized(model, request_of(task_of("a"), words), jpeg(1), jpeg(2))
            for words in (text, "Read:")
        )
        tokenizer = model._loaded.chat.tokenizer
        ends = (tokenizer.eos_token, "<image>" if family == "idefics3" else "<|image_pad|>")
        for end in ends:
            token = tokenizer.convert_tokens_to_ids(end)
            counts = [
                int((model._loaded.chat.inputs([one])["input_ids"] == token).sum())
                for one in (asked, plain)
            ]
            assert counts[0] == counts[1] > 0
        (reply,) = ask(model, [(asked.request, asked.frames)])
        assert reply.failure is None


def test_turns_come_in_order_with_pictures_times_and_the_system_role(folders: Folders) -> None:
    model = model_of(folders("qwen2_5_vl"))
    first = request_of(task_of("a"), "Describe.")
    more = (Turn(role="assistant", text="{broken"), Turn(role="user", text="Mend it."))
    request = replace(first, turns=(*first.turns, *more))
    text = words_of(model, sized(model, request, jpeg(1), jpeg(2)))
    picture = "<|vision_start|>" + 4 * "<|image_pad|>" + "<|vision_end|>"
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{picture}{picture}Describe.<|im_end|>\n"
        "<|im_start|>assistant\n{broken<|im_end|>\n"
        "<|im_start|>user\nMend it.<|im_end|>\n<|im_start|>assistant\n"
    )
    # Without a system role, the system prompt is in the first turn.
    config = ModelConfig(model=str(folders("qwen2_5_vl")))
    loaded = weights.load(config, device="cpu")
    processor = loaded.chat.processor
    processor.chat_template = (
        "{%- if messages[0]['role'] == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
        + processor.chat_template
    )
    chat = type(loaded.chat)(processor)
    assert loaded.chat.has_system_role
    assert not chat.has_system_role
    asked = chat.sized(request_of(task_of("a")), frames_of())
    text = chat.tokenizer.decode(chat.inputs([asked])["input_ids"][0])
    assert "user\nBe brief.\n\nDescribe the clip.<|im_end|>" in text
    # A model with video input gets the times of frames.
    model = model_of(folders("qwen3_vl"), "video")
    text = words_of(model, sized(model, request_of(task_of("a", 4)), *map(jpeg, range(4))))
    # Frames 0, 4, 8, 12 at 10 frames/s; two make one patch in time.
    assert "<0.2 seconds>" in text
    assert "<1.0 seconds>" in text


def test_batches_stay_in_their_budget_and_fill_it(folders: Folders) -> None:
    model, reader = mark_reader(folders("qwen2_5_vl"), batch_tokens=600)
    asked, _ = marked_requests(30)
    pending = [sized(model, request, *frames.jpegs) for request, frames in asked]
    while pending:
        batch, left = model.next_batch(pending)
        cost = len(batch) * (max(one.n_tokens for one in batch) + 16)
        assert cost <= 600
        if left:
            longest = max(one.n_tokens for one in [*batch, *left])
            assert max(one.n_tokens for one in batch) == longest
            assert (len(batch) + 1) * (longest + 16) > 600
        assert len(batch) + len(left) == len(pending)
        pending = left
    assert model.next_batch([])[0] == []
    long = request_of(task_of("long"), "word " * 200)
    (reply,) = ask(model, [(long, frames_of(marked(3)))])
    assert (reply.text, reader.sizes[-1]) == ("3", 1)


@pytest.mark.needs_gpu
def test_on_a_gpu_greedy_answers_are_nearly_those_of_the_cpu(folders: Folders) -> None:
    config = ModelConfig(model=str(folders("qwen2_5_vl")), batch_tokens=1500)
    asked = mixed_requests(10, is_greedy=True)
    model, on_cpu = (LocalCaptioner(config, device=device) for device in ("cuda", "cpu"))
    model.setup()
    on_cpu.setup()
    assert (model._loaded.device, model._loaded.model.dtype) == ("cuda", torch.bfloat16)
    replies = ask(model, asked)
    assert all(reply.failure is None for reply in replies)
    expected = ask(on_cpu, asked)
    assert [r.tokens_in for r in replies] == [r.tokens_in for r in expected]
    # bfloat16 and float32 agree on most first words (on a CPU on 9); later words may differ.
    same = [r.text[:1] == e.text[:1] for r, e in zip(replies, expected, strict=True)]
    assert sum(same) >= 7


LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 3.0, -4.0])


def drawn(requests: list[Request], logits: torch.Tensor, n_steps: int = 1) -> list[list[int]]:
    """Returns the tokens of each row over some steps with the same logits."""
    processors = row_processors(requests, "cpu")
    tokens = []
    for _ in range(n_steps):
        scores_BV = logits.expand(len(requests), -1).float()
        for processor in processors:
            scores_BV = processor(torch.empty(0), scores_BV)
        tokens.append(scores_BV.argmax(dim=-1))
    return torch.stack(tokens, dim=1).tolist()


def test_draws_follow_the_nucleus_at_the_temperature() -> None:
    requests = [
        request_of(task_of("a"), temperature=1.5, max_tokens=10_000, seed=seed) for seed in range(8)
    ]
    rows = drawn(requests, LOGITS, 1000)
    found = Counter(token for row in rows for token in row)
    probabilities = (LOGITS / 1.5).softmax(dim=-1)
    # Descending: 0.50, 0.26, 0.13, 0.07 ...: four tokens hold 0.9 and three do not.
    held = probabilities.sort(descending=True).values.cumsum(0)
    assert held[2] < 0.9 < held[3]
    assert set(found) == {4, 0, 1, 2}
    for token in found:
        share = float(probabilities[token] / held[3])
        assert found[token] / 8000 == pytest.approx(share, abs=4 * (share / 8000) ** 0.5)
    # At temperature 0, the likeliest token is taken, and an impossible token never.
    requests = [request_of(task_of("a"), temperature=0, seed=seed) for seed in range(4)]
    assert drawn(requests, LOGITS, 5) == [[4] * 5] * 4
    logits = torch.tensor([-torch.inf, -torch.inf, 0.0])
    requests = [request_of(task_of("a"), temperature=2.0, seed=seed) for seed in range(50)]
    assert {token for row in drawn(requests, logits, 20) for token in row} == {2}


def test_a_row_does_not_depend_on_its_batch_and_does_on_seed_and_clip() -> None:
    one, other = task_of("one"), task_of("other")
    requests = [
        request_of(one, temperature=1.5),
        request_of(one, temperature=1.5, seed=1),
        request_of(other, temperature=1.5),
    ]
    together = drawn(requests, LOGITS, 30)
    assert [drawn([request], LOGITS, 30)[0] for request in requests] == together
    assert drawn(requests[::-1], LOGITS, 30) == together[::-1]
    assert len({tuple(row) for row in together}) == 3
