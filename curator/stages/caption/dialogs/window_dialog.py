"""The dialog about a window: candidates, repair, retry and judgement.

```
 candidate 0   ask ─ (repair) ─ rules ─ (retry ─ (repair) ─ rules) ─ judge ─ (repair) ─┐
 candidate 1   ask ─ …                                                                ─┼─ best
```

If the prompt has a second phase (`then`), `ask` is two turns, each with a repair of its own: the
custom fields of the prompt, then the built-in fields, which the model writes with the first answer
before it.

A dialog is a generator: it yields requests that may run at the same time, takes their replies in
the same order, and returns the window's annotation. Dialogs do not depend on the captioner, on time
or on chance: the same replies give the same requests and the same annotation.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from curator.errors import RecipeError, raised_as
from curator.measures.claims.claim_records import Measured, Verdict
from curator.stages.caption.caption_records import (
    TRANSIENT,
    Annotation,
    Answer,
    AnswerCandidate,
    Reply,
    Request,
    Role,
    Sampling,
    Task,
    Turn,
    Unanswered,
)
from curator.stages.caption.config import CaptionConfig, ModelConfig
from curator.stages.caption.dialogs.answer_rules import (
    NAMES,
    Problem,
    check_language,
    claimed_fields,
    problem_of,
    problem_of_text,
    wrong_times,
)
from curator.stages.caption.dialogs.answers import (
    MAX_ERRORS,
    BadAnswerError,
    answer_of,
    answer_schemas,
    answer_text,
    as_json,
    format_of,
    judge_schema,
    read_fields,
    read_scores,
)
from curator.stages.caption.dialogs.prompt_files import as_data, fill, load_prompt

if TYPE_CHECKING:
    from curator.measures.claims.claim_check import Claim

Dialog = Generator[list[Request], list[Reply], Annotation]
Dialogs = Callable[[Task], Dialog]
"""Begins the dialog about a task."""


FieldsT = TypeVar("FieldsT")
Schema = Mapping[str, Any] | None
_Candidate = Generator[Request, Reply, AnswerCandidate | Reply]
"""Yields the requests of a candidate; returns the candidate, or a reply with the failure."""


def contradictions(answer: Answer, task: Task) -> "list[Claim]":
    """Returns the claims of an answer that measurements of its clip contradict."""
    if task.measured is None:
        return []
    # Imported here: other dialogs need no measures, which import codecs.
    from curator.measures.claims.claim_check import check_caption

    measured = task.measured
    given = Measured(**{own.name: getattr(measured, own.name) for own in fields(measured)})
    told = {"short": answer.short, "medium": answer.medium, "long": answer.long}
    told |= claimed_fields(answer)
    claims = check_caption(told, given)
    first = {(c.kind, c.value): c for c in reversed(claims) if c.verdict is Verdict.CONTRADICTED}
    return list(first.values())[::-1]


def make_dialogs(config: CaptionConfig) -> Dialogs:
    """Returns the function that begins dialogs; without a model, metadata gives the captions.

    Raises:
        RecipeError: A prompt is wrong, or does not fit the recipe.
    """
    return Asker(config).dialog if config.asks else partial(_from_metadata, config)


def _from_metadata(config: CaptionConfig, task: Task) -> Dialog:
    """Begins a dialog without requests, which answers from metadata."""
    yield from ()
    assert task.metadata is not None
    values: dict[str, str] = {config.text: task.metadata.caption}
    return Annotation(task=task, answer=Answer(**values, content_type=task.metadata.label))  # type: ignore[arg-type]


def replayed(
    dialog: Dialog, replies: Mapping[str, Reply]
) -> tuple[Annotation | None, dict[str, Reply]]:
    """Runs a new dialog over stored replies, by request key.

    Returns the annotation, or None if a reply is missing; and the stored replies of the dialog.
    """
    own_replies: dict[str, Reply] = {}
    try:
        asked = next(dialog)
        while all(request.key in replies for request in asked):
            told = {request.key: replies[request.key] for request in asked}
            own_replies |= told
            asked = dialog.send(list(told.values()))
    except StopIteration as end:
        return end.value, own_replies
    dialog.close()
    own_replies |= {each.key: replies[each.key] for each in asked if each.key in replies}
    return None, own_replies


class Asker:
    """Begins the dialogs of one configuration; raises as `make_dialogs`."""

    def __init__(self, config: CaptionConfig) -> None:
        if config.candidates > 1 and config.temperature == 0:
            raise RecipeError(
                f"caption.candidates is {config.candidates}, but at caption.temperature 0 all "
                "answers are equal; set caption.temperature above 0"
            )
        if config.language is not None:
            check_language(config.language)
        self.config = config
        self._captioner = _Model("captioner", config)
        self.prompt = prompt = self._captioner.prompt
        self._schemas = answer_schemas(config, prompt)
        if "{candidate}" in prompt.user:
            raise RecipeError(
                f"caption.prompt {config.prompt!r} has {{candidate}}, which only a judge can fill"
            )
        if not prompt.retry:
            raise RecipeError(f"caption.prompt {config.prompt!r} has no retry; add a retry")
        if config.judge is not None:
            self._judge = _Model("judge", config.judge)
            self._judge_schema = judge_schema(self._judge.prompt)

    def dialog(self, task: Task) -> Dialog:
        """Begins a dialog: it yields requests, takes replies, and returns the annotation."""
        set_aside = Counter[str]()
        courses = [self._course(task, i, set_aside) for i in range(self.config.candidates)]
        ended: dict[int, AnswerCandidate | Reply] = {}
        given: dict[str, Reply] = {}
        replies: dict[int, Reply | None] = dict.fromkeys(range(len(courses)))
        while replies:
            asked: dict[int, Request] = {}
            for i, reply in replies.items():
                try:
                    asked[i] = next(courses[i]) if reply is None else courses[i].send(reply)
                except StopIteration as end:
                    ended[i] = end.value
            # Equal requests are sent once.
            new = {request.key: request for request in asked.values() if request.key not in given}
            if new:
                told = yield list(new.values())
                given.update(zip(new, told, strict=True))
            replies = {i: given[request.key] for i, request in asked.items()}
        return self._annotation(task, [ended[i] for i in range(len(courses))], set_aside, given)

    def asked(self, task: Task) -> dict[str, str]:
        """Returns the texts `system` and `user` of the first request about a window."""
        request = self._request(task, self.config.seed)
        return {"system": request.system, "user": request.turns[0].text}

    def _course(self, task: Task, number: int, set_aside: Counter[str]) -> _Candidate:
        config, seed = self.config, self.config.seed + number
        result = yield from self._answer(self._request(task, seed), set_aside)
        if isinstance(result, Problem):
            set_aside[result.reason] += 1
            retry = fill(self.prompt.retry, {"problem": as_data(result.message)})
            request = self._request(task, seed + config.candidates, f"\n\n{retry}")
            result = yield from self._answer(request, set_aside)
        if isinstance(result, Problem):
            return Reply(failure=result.reason, detail=f"{result.field}: {result.message}")
        if isinstance(result, Reply):
            return result
        if config.repair_contradictions and task.measured is not None:
            result = yield from self._repaired(task, result, seed, set_aside)
        if config.judge is None:
            return result
        return (yield from self._scored(task, result))

    def _repaired(
        self, task: Task, candidate: AnswerCandidate, seed: int, set_aside: Counter[str]
    ) -> Generator[Request, Reply, AnswerCandidate]:
        """Asks once more if measurements contradict a candidate; returns the better of both."""
        against = contradictions(candidate.answer, task)
        if not against:
            return candidate
        set_aside["contradicted"] += 1
        problem = "measurements of this clip contradict it: " + "; ".join(
            f"{as_data(claim.text)!r}, but measured: {claim.measured}" for claim in against
        )
        retry = fill(self.prompt.retry, {"problem": problem})
        request = self._request(task, seed + 2 * self.config.candidates, f"\n\n{retry}")
        again = yield from self._answer(request, set_aside)
        if not isinstance(again, AnswerCandidate):
            return candidate
        return again if len(contradictions(again.answer, task)) < len(against) else candidate

    def _answer(
        self, request: Request, set_aside: Counter[str]
    ) -> Generator[Request, Reply, AnswerCandidate | Problem | Reply]:
        """Returns a candidate, the problem of its answer, or a failed reply."""
        first, values = request, dict[str, Any]()
        for schema in self._schemas:
            if values:
                then = fill(self.prompt.then, self._values(request.task, schema))
                request = _continued(first, as_json(values), then, schema)
            fields, key = yield from self._captioner.read(request, self._fields, set_aside)
            if not isinstance(fields, dict):
                return fields
            values |= fields
        answer = answer_of(values)
        candidate = AnswerCandidate(answer=answer, reply_key=key)
        return problem_of(answer, self.config) or candidate

    def _fields(self, request: Request, reply: Reply) -> dict[str, Any] | Problem:
        problem = problem_of_text(reply.text, is_whole=reply.is_whole)
        if problem is not None:
            return problem
        fields, window = read_fields(reply.text, self.config, request.schema), request.task.window
        seconds = (window.end_frame - window.start_frame) / request.task.fps
        if wrong := wrong_times(fields, seconds):
            raise BadAnswerError("; ".join(wrong[:MAX_ERRORS]))
        return fields

    def _scored(
        self, task: Task, candidate: AnswerCandidate
    ) -> Generator[Request, Reply, AnswerCandidate]:
        """Returns a candidate with its scores, or without scores if the judge gives none."""

        def read(request: Request, reply: Reply) -> dict[str, Any] | Reply:
            return read_scores(reply.text, schema) if reply.is_whole else reply

        judge, schema = self._judge, self._judge_schema
        text = as_data(answer_text(candidate.answer, self.config, self.prompt))
        values = self._values(task, schema) | {"candidate": text}
        request = judge.request(task, judge.config.seed, values, schema)
        if judge.config.frames_as != self.config.frames_as:
            request = replace(request, frames_as=judge.config.frames_as)
        scores, _ = yield from judge.read(request, read, Counter())
        return replace(candidate, **scores) if isinstance(scores, dict) else candidate

    def _annotation(
        self,
        task: Task,
        ended: Sequence[AnswerCandidate | Reply],
        set_aside: Counter[str],
        given: Mapping[str, Reply],
    ) -> Annotation:
        """Returns the best of the candidates, or the failure."""
        whole = tuple(each for each in ended if isinstance(each, AnswerCandidate))
        # A transient failure comes first, because another run may bring an answer.
        failed = sorted(
            (each for each in ended if isinstance(each, Reply)),
            key=lambda reply: reply.failure not in TRANSIENT,
        )
        if whole:
            # Of equal scores, max takes the first, which has the lowest seed.
            best = max(whole, key=lambda candidate: candidate.score or 0)
            lost = Counter(str(reply.failure) for reply in failed)
            made: dict[str, Any] = {"answer": best.answer, "lost": _sorted(lost)}
        else:
            made = {"failure": failed[0].failure, "detail": failed[0].detail}
        return Annotation(
            task=task,
            **made,
            candidates=whole,
            set_aside=_sorted(set_aside),
            n_unscored=sum(item.score is None for item in whole) if self.config.judge else 0,
            request_keys=tuple(given),
            tokens_in=sum(reply.tokens_in for reply in given.values()),
            tokens_out=sum(reply.tokens_out for reply in given.values()),
        )

    def _request(self, task: Task, seed: int, retry: str = "") -> Request:
        schema = self._schemas[0]
        return self._captioner.request(task, seed, self._values(task, schema), schema, retry)

    def _values(self, task: Task, schema: Schema) -> dict[str, str]:
        window, config = task.window, self.config
        times_s = [(frame - window.start_frame) / task.fps for frame in window.shown]
        language = config.language
        name = NAMES.get(language, f"the language {language}") if language is not None else ""
        questions = (f"- {name}: {asked}" for name, asked in config.questions.items())
        return {
            "facts": as_data(task.facts).strip() or "(nothing)",
            "format": format_of(schema),
            "questions": "\n".join(questions),
            "duration": f"{(window.end_frame - window.start_frame) / task.fps:.1f}",
            "n_frames": str(len(window.shown)),
            "times": ", ".join(f"{time_s:.1f}" for time_s in times_s),
            "language": f"- Write in {name}.\n" if name else "",
        }


class _Model:
    """Captioner or judge, with its prompt."""

    def __init__(self, role: Role, config: ModelConfig) -> None:
        self.role, self.config = role, config
        key = "caption.prompt" if role == "captioner" else "caption.judge.prompt"
        with raised_as(RecipeError, RecipeError, of=f"{key}: "):
            self.prompt = load_prompt(config.prompt)

    def request(
        self, task: Task, seed: int, values: Mapping[str, str], schema: Schema, retry: str = ""
    ) -> Request:
        """Fills in the prompt; `retry` follows the text of the user."""
        config, prompt = self.config, self.prompt
        sampling = {name: getattr(config, name) for name in ("max_tokens", "temperature", "top_p")}
        return Request(
            role=self.role,
            model=config.name,
            task=task,
            system=fill(prompt.system, values),
            turns=(Turn(role="user", text=fill(prompt.user, values) + retry),),
            sampling=Sampling(**sampling, seed=seed),
            schema=schema,
        )

    def read(
        self, request: Request, read: Callable[[Request, Reply], FieldsT], set_aside: Counter[str]
    ) -> Generator[Request, Reply, tuple[FieldsT | Reply, str]]:
        """Sends a request, and one more if `read` raises `BadAnswerError`, which names the error.

        Returns what `read` made of the reply, or a failed reply; and the key of the last request.
        """
        reply = yield request
        for is_repair in (False, True):
            if reply.failure is not None:
                break
            try:
                return read(request, reply), request.key
            except BadAnswerError as error:
                if is_repair:
                    reply = Reply(failure=Unanswered.BAD_ANSWER, detail=str(error))
                    break
                set_aside[Unanswered.BAD_ANSWER] += 1
                values = {"error": as_data(str(error)), "format": format_of(request.schema)}
                repair = fill(self.prompt.repair, values)
                request = _continued(request, reply.text, repair, request.schema)
                reply = yield request
        return reply, request.key


def _continued(request: Request, answer: str, text: str, schema: Schema) -> Request:
    """Extends the conversation with an answer, and with a turn of the user."""
    turns = (Turn(role="assistant", text=as_data(answer)), Turn(role="user", text=text))
    return replace(request, turns=(*request.turns, *turns), schema=schema)


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return {str(name): counter[name] for name in sorted(counter)}
