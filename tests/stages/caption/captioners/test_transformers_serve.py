"""`transformers serve`, as the local captioner starts it, with small models that are made here."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from served import Kept, annotations_of
from tiny_vlm import tiny_folder
from vlm import marked_frames, marked_task, request_of

from curator.errors import ModelError
from curator.stages.caption.caption_records import (
    Annotation,
    Answer,
    Frames,
    Reply,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.dialog_runner import DialogRunner
from curator.stages.caption.captioners.local_server import LocalCaptioner
from curator.stages.caption.config import ModelConfig
from curator.stages.caption.dialogs.window_dialog import Dialog

# Not imported: each process that collects these tests would wait for the imports.
_PACKAGES = ("transformers", "fastapi", "uvicorn", "openai", "accelerate")
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, _PACKAGES)), reason="needs transformers[serving]"
)
SCHEMA = {"type": "object", "properties": {"medium": {"type": "string"}}}


class Shared(LocalCaptioner):
    """A server that goes on when a runner ends."""

    def setup(self) -> None:
        if self._server is None:
            super().setup()

    def cancel_requests(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Shared]:
    captioner = Shared(config_of(folder))
    captioner.setup()
    yield captioner
    LocalCaptioner.close(captioner)


def config_of(folder: Path) -> ModelConfig:
    return ModelConfig(model=str(folder), server="transformers")


def answers_of(
    captioner: Shared, n_clips: int, n_frames: int = 2, *, temperature: float = 0.0, seed: int = 0
) -> list[Reply]:
    """Requests answers about clips of marked frames; returns the reply about each clip."""

    def one_question(task: Task) -> Dialog:
        text = f"Clip {task.clip_id}?"
        (reply,) = yield [request_of(task, text, temperature=temperature, seed=seed)]
        return Annotation(task=task, failure=reply.failure, answer=Answer(medium=reply.text))

    kept = Kept()
    windows = [(marked_task(clip), marked_frames(clip, n_frames)) for clip in range(n_clips)]
    runner = DialogRunner(one_question, {"captioner": captioner}, budget_s=120)
    found = annotations_of(runner, windows, kept)
    assert [each.task.clip_id for each in found] == [f"clip-{i}" for i in range(n_clips)]
    assert all(each.failure is None for each in found), found
    return list(kept.values())


@pytest.mark.long
def test_each_clip_is_answered_by_every_one_of_its_frames(served: Shared) -> None:
    """Pins also that another seed gives other draws; the same one may, too."""
    replies = answers_of(served, 4)
    assert len({reply.text for reply in replies}) > 1
    for reply in replies:
        # Random weights rarely end an answer: it is cut off after sixteen tokens.
        assert reply.tokens_out <= 16
        assert reply.is_whole == (reply.tokens_out < 16)
    drawn = [
        [reply.text for reply in answers_of(served, 4, temperature=1.5, seed=seed)]
        for seed in (1, 2)
    ]
    assert drawn[0] != drawn[1]
    # A picture has 16 tokens, and its time, such as "at 0.5 s", one token per letter.
    tokens = [answers_of(served, 1, n_frames)[0].tokens_in for n_frames in (1, 2, 3)]
    assert tokens[1] - tokens[0] == 16 + len("at 0.5 s")
    assert tokens[2] - tokens[1] == 16 + len("at 1 s")
    assert served.child_cpu_s > 1


@pytest.mark.long
def test_what_the_server_does_with_a_schema_and_a_broken_picture(served: Shared) -> None:
    """Pins that the server ignores schemas, which is why none are sent."""
    request = request_of(marked_task(1), "Answer.")
    assert not served.guided
    plain = served.answer(request, marked_frames(1))
    served.guided = True
    guided = served.answer(replace(request, schema=SCHEMA), marked_frames(1))
    assert (guided.text, served.guided) == (plain.text, True)
    served.guided = False
    refused = served.answer(request, Frames(jpegs=(b"no picture",), times_s=(0.0,)))
    assert refused.failure is Unanswered.SERVER_ERROR
    # The server says only "Internal Server Error"; its log says why.
    assert "500" in refused.detail
    assert "image" in refused.detail


@pytest.mark.long
def test_a_model_that_cannot_be_loaded_is_an_error(folder: Path, tmp_path: Path) -> None:
    """Pins missing tensors, shapes, and code of a model, which is not run."""
    from safetensors.torch import load_file, save_file

    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    path = broken / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "q_proj" in name)
    whole = tensors.pop(name)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"tensors are missing or of another shape, such as .*q_proj"
    ):
        LocalCaptioner(config_of(broken)).setup()
    save_file(tensors | {name: whole[:-1].contiguous()}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing or of another shape, such as .*q_proj"):
        LocalCaptioner(config_of(broken)).setup()
    config = json.loads((broken / "config.json").read_text()) | {
        "model_type": "unheard_of",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForImageTextToText": "code.Model"},
    }
    (broken / "config.json").write_text(json.dumps(config))
    (broken / "code.py").write_text(f"open({str(broken / 'ran')!r}, 'w')\nclass Config: pass\n")
    with pytest.raises(ModelError, match="its code is not run"):
        LocalCaptioner(config_of(broken)).setup()
    assert not (broken / "ran").exists()
