"""What opening a log found and did, in words."""

from goqueue.cli.log.selection import ENDLESS
from goqueue.cli.output import name_offsets, note, show_count, show_size
from goqueue.storage.recovery import RecoveryReport


def tell(report: RecoveryReport) -> None:
    """A note for each thing that opening the log met."""
    for line in report.notes:
        note(line)
    for path, damage in report.quarantined:
        end = damage.next_offset if damage.next_offset < ENDLESS else None
        note(f"quarantined {name_offsets(damage.first, end)} in {path}: {damage.reason}")
    if report.cut is not None:
        cut = report.cut
        note(
            f"cut {show_size(cut.size)} from offset {cut.first_offset} on "
            f"({show_count(cut.valid_records, 'whole record')} among them), saved as {', '.join(cut.saved_as)}"
        )
