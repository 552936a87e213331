"""Descriptions of fields: what people read about a key."""

from pydantic import BaseModel, Field, create_model

from curator.field_docs import description_of
from curator.stages.cut.config import CutConfig


class Base(BaseModel):
    """A model with a docstring below a field, over two lines."""

    first: int = 0
    """what the first
    field means"""
    second: int = Field(0, description="said by the field")
    """not read"""
    third: int = 0


class Below(Base):
    """A model that changes one field."""

    third: int = 1
    """described below"""


def test_a_docstring_describes_a_field_unless_the_field_does() -> None:
    """Pins bases too, and a class without a source, which is no error."""
    names = ("first", "second", "third")
    assert [description_of(Base, name) for name in names] == [
        "what the first field means", "said by the field", "",
    ]  # fmt: skip
    assert [description_of(Below, name) for name in names] == [
        "what the first field means", "said by the field", "described below",
    ]  # fmt: skip
    assert description_of(create_model("Made", size=(int, 1)), "size") == ""


def test_every_key_of_a_section_is_described() -> None:
    assert all(description_of(CutConfig, name) for name in CutConfig.model_fields)
