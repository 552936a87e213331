"""Zero-shot classes in words: the packaged content types, or a file of the user's own."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curator.errors import ModelError


class Prompts(BaseModel):
    """Classes and the prompts that describe them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    templates: list[str] = Field(min_length=1)
    content: dict[str, list[str]] = Field(min_length=2)
    safety: dict[str, list[str]] = Field(min_length=2)
    unsafe: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> "Prompts":
        for template in self.templates:
            if template.count("{}") != 1:
                raise ValueError(f"template {template!r}; expected one {{}} for the prompt")
        for name, prompts in (self.content | self.safety).items():
            if not prompts:
                raise ValueError(f"{name} has no prompt")
        unknown = set(self.unsafe) - set(self.safety)
        if unknown or len(set(self.unsafe)) == len(self.safety):
            raise ValueError(f"unsafe is {self.unsafe}; expected some, not all, of the classes of "
                             f"safety: {', '.join(self.safety)}")  # fmt: skip
        return self

    def texts(self, prompts: list[str]) -> list[str]:
        """Each prompt in each template."""
        return [template.replace("{}", p) for p in prompts for template in self.templates]


def load_prompts(path: str | None = None) -> Prompts:
    """Reads classes and prompts from a YAML file; None stands for `content_types.yaml` here.

    Raises:
        ModelError: It cannot be read, or is of another form.
    """
    from curator.strict_yaml import StrictYamlError, load_yaml

    file = Path(path) if path is not None else Path(__file__).parent / "content_types.yaml"
    try:
        return Prompts.model_validate(load_yaml(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, StrictYamlError, ValidationError) as error:
        raise ModelError(
            f"prompts {file} cannot be read: {' '.join(str(error).split())}"
        ) from error
