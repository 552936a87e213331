"""Checks the objects that no run can make again, and their copies."""

from curator.storage import Store
from curator.tables.lasting_objects import lasting_objects, loss_remedy
from curator.tables.removal_records import Removals, kept_objects
from curator.tools.verify.findings import FindingCode, Findings

_RESTORES = "the next `curate run`, `mark`, or `remove OUT --finish` writes it again from {}"


def check_lasting(store: Store, removals: Removals, findings: Findings) -> None:
    """Adds a finding for each object that is damaged or lost, and for each such copy."""
    for stored in lasting_objects(store, kept_objects(store, removals)):
        name = stored.name
        where, code = f"{store.uri}/{name}", FindingCode.IRREPLACEABLE
        if stored.data is None:
            words, remedy = f"{stored.loss(store.uri)}", loss_remedy("OUT", name)
            findings.add(code, where, words, "an object or its copy", remedy)
        elif stored.fault:
            remedy = _RESTORES.format("its copy")
            findings.add(code, where, stored.fault, "the bytes that were written", remedy)
        elif stored.stale:
            where, remedy = f"{store.uri}/{stored.stale[0]}", _RESTORES.format(name)
            findings.add(code, where, "damaged or missing", f"what belongs to {name}", remedy)
