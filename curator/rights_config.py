"""Settings of licence and origin: which metadata says them, and which sources may be used."""

from typing import Any, Literal

from pydantic import field_validator

from curator.records.licenses import spdx_id
from curator.stage import StageConfig, setting
from curator.storage.metadata_columns import is_metadata


class RightsConfig(StageConfig):
    """Settings of rights. A source that they refuse is not decoded, and has no clips."""

    license: str | None = setting(None, unit="name")
    """column of metadata with the licence, such as meta.license; becomes the column license of
    sources and clips, known spellings as SPDX ids such as CC-BY-4.0; null for none"""
    origin: str | None = setting(None, unit="name")
    """column of metadata with the address or name of where a source is from, such as
    meta.source_url; becomes the column origin of sources and clips; null for none"""
    category: str | None = setting(None, unit="name")
    """column of metadata with the category of a source, such as licensed or crawled, by which
    `curate report --rights` groups; null for none"""
    allow: tuple[str, ...] | None = setting(None, min_length=1, unit="names")
    """licences of which sources are used, as SPDX ids or spellings of them; sources with another
    licence or none fail as license_not_allowed; null for all"""
    reserved: str | None = setting(None, unit="name")
    """column of metadata that reserves rights, such as meta.tdm_reservation: sources with another
    value than 0, false, no or none fail as rights_reserved; null for no check"""
    generated: Literal["keep", "refuse"] = setting("keep", unit="name")
    """refuse: sources whose C2PA manifest says that a model generated them, or parts of them, fail
    as generated; needs scan.c2pa"""

    @field_validator("license", "origin", "category", "reserved")
    @classmethod
    def _of_metadata(cls, name: str | None) -> str | None:
        if name is not None and not is_metadata(name):
            raise ValueError(f"{name!r}; expected a column of metadata, such as meta.license")
        return name

    @field_validator("allow")
    @classmethod
    def _as_ids(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        ids = tuple(filter(None, map(spdx_id, names)))
        if len(ids) < len(names):
            raise ValueError("an empty text; expected licences, such as CC-BY-4.0")
        return ids

    def problem_in(self, recipe: Any, /) -> str | None:  # noqa: ANN401 - knows no recipe
        """Returns why these settings cannot be applied, with the remedy; None if they can."""
        if self.allow is not None and self.license is None:
            return (
                f"rights.allow is [{', '.join(self.allow)}], and rights.license is null: set it to "
                "the column of metadata with the licence, such as meta.license"
            )
        if self.generated == "refuse" and not recipe.scan.c2pa:
            return (
                "rights.generated is refuse, and scan.c2pa is false, so no manifest is read: set "
                "scan.c2pa to true"
            )
        return None

    @property
    def columns(self) -> list[str]:
        """The columns of metadata that these settings name."""
        named = (self.license, self.origin, self.category, self.reserved)
        return list(filter(None, named))

    @property
    def refuses(self) -> bool:
        """Whether these settings may refuse a source."""
        return self.allow is not None or self.reserved is not None or self.generated == "refuse"
