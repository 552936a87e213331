"""The list of captioners, including those of users."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from curator.errors import RecipeError, unknown_key
from curator.extensions import Extension, Kind, entry_point_names, load_extension

if TYPE_CHECKING:
    from curator.stages.caption.caption_records import Role
    from curator.stages.caption.captioners.captioner_contract import Captioner
    from curator.stages.caption.config import CaptionConfig

_HERE = "curator.stages.caption.captioners"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A captioner of this package."""

    about: str
    target: str | None = None
    """The class, imported on use; None for captioners without a model."""
    needs: tuple[str, ...] = ()
    """Required keys of the recipe."""


CAPTIONERS: Mapping[str, BuiltIn] = {
    "measured": BuiltIn(about="puts a caption together from what was measured, and asks no model"),
    "metadata": BuiltIn(
        about="puts one together from a file beside the source and from what was measured, and "
        "asks no model either"
    ),
    "openai": BuiltIn(
        about="asks a server that speaks OpenAI's protocol (vLLM, SGLang, NIM, hosted)",
        target=f"{_HERE}.chat_server:ServerCaptioner",
        needs=("model", "url"),
    ),
    "transformers": BuiltIn(
        about="loads the model in the worker",
        target=f"{_HERE}.local_model:LocalCaptioner",
        needs=("model",),
    ),
}
"""Captioners by their name in recipes."""


def name_problem(name: str) -> str | None:
    """Says why a captioner's name is wrong, or returns None. Imports no captioner."""
    if name in CAPTIONERS or ":" in name or name in (others := entry_point_names(Kind.CAPTIONER)):
        return None
    problem = unknown_key(name, [*CAPTIONERS, *others], "captioner")
    return f"{problem}; a class of your own is named package.module:Class"


def captioner_class(name: str) -> "type[Captioner]":
    """Returns the class of a captioner that uses a model.

    Raises:
        RecipeError: An external class cannot be loaded.
    """
    built_in = CAPTIONERS.get(name)
    if built_in is None:
        from curator.stages.caption.captioners.captioner_contract import Captioner

        external = load_extension(Kind.CAPTIONER, name).target
        if not issubclass(external, Captioner):
            raise RecipeError(
                f"caption.captioner {name!r} is no Captioner; expected a subclass of "
                "curator.stages.caption.captioners.captioner_contract.Captioner"
            )
        if iscoroutinefunction(external.answer) or callable(getattr(external, "client", None)):
            raise RecipeError(
                f"caption.captioner {name!r} answers asynchronously (by `client` or an async "
                "`answer`); expected a plain method `answer`, which several threads may call"
            )
        return external
    assert built_in.target is not None
    captioner: type[Captioner] = resolve_name(built_in.target)
    return captioner


def captioners_of(config: "CaptionConfig") -> "dict[Role, Captioner]":
    """Makes captioner and judge of a recipe; raises errors as `captioner_class`."""
    captioner = captioner_class(config.captioner)
    by_role: dict[Role, Captioner] = {"captioner": captioner(config)}
    if config.judge is not None:
        by_role["judge"] = captioner(config.judge, section="caption.judge")
    return by_role


def captioner_extensions(name: str) -> list[Extension]:
    """Returns the captioner if it comes from outside this package."""
    return [] if name in CAPTIONERS else [load_extension(Kind.CAPTIONER, name)]


def outside_version(name: str) -> tuple[str, ...]:
    """Returns class and version of an external captioner, for fingerprints; empty if built in."""
    return tuple(
        str(value)
        for extension in captioner_extensions(name)
        for value in (extension.path, getattr(extension.target, "version", None))
    )
