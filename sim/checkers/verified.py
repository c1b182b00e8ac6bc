"""Offline verification of a closed log names every damaged record and nothing else."""

from goqueue.storage.verify import Severity, verify
from sim.checkers import require
from sim.checkers.observed import Observed
from sim.disk import SimDisk
from sim.rooms.history import History

RULE = "verified"


def check(history: History, observed: Observed, disk: SimDisk, directory: str) -> None:
    findings = list(verify(directory, disk))
    damage = [finding for finding in findings if finding.severity is Severity.DAMAGE]
    for finding in findings:
        require(finding.severity is not Severity.TEAR, RULE, f"a log that was closed has a torn end: {finding}")
        require("disagrees" not in finding.reason, RULE, f"an index or view is wrong: {finding}")
    for finding in damage:
        named = range(finding.first_offset, finding.next_offset)
        require(any(history.may_be_damaged(offset) for offset in named), RULE, f"nothing was damaged there: {finding}")
    for first, after in observed.quarantined:
        named = range(max(first, observed.start), after)
        for offset in named:
            found = any(finding.first_offset <= offset < finding.next_offset for finding in damage)
            require(found, RULE, f"offset {offset} is quarantined, verification does not name it: {damage}")
