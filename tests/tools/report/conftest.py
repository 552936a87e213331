"""Pages with as many clips as users see."""

from collections.abc import Iterator

import pytest

from curator.tools.report import contact_sheets
from curator.tools.report.contact_sheets import MAX_CARDS


@pytest.fixture(autouse=True, scope="package")
def _many_cards() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contact_sheets, "MAX_CARDS", MAX_CARDS)
        yield
