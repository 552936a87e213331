"""Remembers what was made of replies: as a reply to the question about the window as a whole.

To run a dialog again over stored replies takes 3 ms a window, mostly for rules on captions; to read
what came of it takes 0.1 ms. Both are deleted together, with the folder of the replies.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from curator.fingerprints import fingerprint
from curator.stages.caption.caption_records import (
    TRANSIENT,
    Annotation,
    Answer,
    AnswerCandidate,
    Reply,
    Task,
    Unanswered,
)
from curator.stages.caption.captioners.captioner_list import outside_version
from curator.stages.caption.config import ANNOTATE_VERSION, CaptionConfig
from curator.stages.caption.dialogs.prompt_files import load_prompt
from curator.stages.caption.reply_store import Replies

_REACHED = {"url", "key_from", "in_flight", "timeout_s", "tries", "guided", "batch_tokens"}
"""Settings for reaching a model, which change no annotation."""
_DECIDED = {"enabled", "reject", "failed", "budget_s", "embedding", "text"}
"""Settings for decisions by annotations."""
_MADE = [field.name for field in fields(Annotation) if field.name != "task"]


def answers_fingerprint(config: CaptionConfig) -> str:
    """Returns the fingerprint of all settings and words that turn replies into annotations."""
    exclude: Any = {name: True for name in _REACHED | _DECIDED} | {
        "judge": _REACHED | {"min_score"}
    }
    return fingerprint(
        "annotations",
        ANNOTATE_VERSION,
        config.model_dump(mode="json", exclude=exclude),
        [load_prompt(model.prompt).fingerprint for model in config.models] if config.asks else [],
        *(outside_version(config.captioner) if config.asks else ()),
    )


def annotation_key(task: Task, of_config: str) -> str:
    """Returns the key of an annotation among replies and in the table `annotations`."""
    window = task.window
    asked = [task.content, window.start_frame, window.end_frame, window.shown, task.facts]
    return fingerprint(of_config, asked)


def remember(annotation: Annotation, of_config: str, replies: Replies) -> None:
    """Keeps an annotation, unless another run may make another one."""
    if annotation.failure not in TRANSIENT:
        made = {name: getattr(annotation, name) for name in _MADE}
        if len(annotation.candidates) == 1 and annotation.candidates[0].score is None:
            # It says no more than the answer.
            made["candidates"] = ()
        replies.keep(
            annotation_key(annotation.task, of_config),
            Reply(text=orjson.dumps(made).decode(), n_tries=0),
        )


def remembered(task: Task, of_config: str, replies: Mapping[str, Reply]) -> Annotation | None:
    """Returns the annotation that was kept of a window; None without, or without its replies."""
    reply = replies.get(annotation_key(task, of_config))
    if reply is None:
        return None
    made = orjson.loads(reply.text)
    # Users delete replies to get windows annotated again.
    if not all(key in replies for key in made["request_keys"]):
        return None
    answer, failure = made["answer"], made["failure"]
    return Annotation(
        task=task,
        **made
        | {
            "answer": None if answer is None else Answer(**answer),
            "failure": None if failure is None else Unanswered(failure),
            "candidates": tuple(
                AnswerCandidate(**candidate | {"answer": Answer(**candidate["answer"])})
                for candidate in made["candidates"]
            ),
            "request_keys": tuple(made["request_keys"]),
        },
    )
