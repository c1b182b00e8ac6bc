"""The segments of a log as readers see them, and the state file that says which there are.

A change of structure is decided by saving the state file; files and memory follow it, also after a crash
(`recovery` finishes what it finds decided). Readers take `segments`, a tuple that is replaced as a whole.
An OSError out of any method means the disk is not what the state says: the log must stop. A DiskFull out of
`save` or `seal` means nothing was decided.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from threading import Lock

import msgspec

from goqueue.io.disk import Disk
from goqueue.model.errors import DiskFull, StaleEpoch
from goqueue.model.settings import LogSettings
from goqueue.storage import derived as companions
from goqueue.storage import state as hard_state
from goqueue.storage.cache import DerivedCache
from goqueue.storage.derived import Derived
from goqueue.storage.files import OpenFiles
from goqueue.storage.reading import Reader
from goqueue.storage.recovery import Recovered, recover_tail, remove_segment, truncate_tail, view_path
from goqueue.storage.segment import Segment
from goqueue.storage.state import LeaderEpoch, SealedSegment, Trait
from goqueue.storage.views import ViewKind

_BASE = attrgetter("base")


def _from(epochs: tuple[LeaderEpoch, ...], start: int) -> tuple[LeaderEpoch, ...]:
    """The leader epochs in force at `start` and after."""
    past = [entry for entry in epochs if entry.start_offset <= start]
    return (*past[-1:], *epochs[len(past) :])


class Catalogue:
    """Changed by one thread at a time (the log sees to it), but for `add`, which the writer calls at any time."""

    def __init__(
        self,
        directory: str,
        disk: Disk,
        files: OpenFiles,
        cache: DerivedCache,
        kinds: Sequence[ViewKind],
        recovered: Recovered,
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._files = files
        self._cache = cache
        self._kinds = kinds
        self._publishing = Lock()
        self.state = recovered.state
        self.mark = recovered.mark
        self.segments = tuple(recovered.segments)
        """In offset order, each beginning where the one before ends; the last one is active."""

    def save(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self.state, **changes)
        hard_state.save(self._disk, self._directory, changed)
        self.state = changed

    def take_seal(self) -> int:
        """A seal number nobody else gets."""
        seal = self.state.next_seal
        self.state = msgspec.structs.replace(self.state, next_seal=seal + 1)
        return seal

    # --- growing

    def unsealed(self) -> list[Segment]:
        """The tail: segments that rolled and wait to be sealed, and the active one."""
        segments = self.segments
        first = len(segments) - 1
        while first > 0 and not segments[first - 1].seal:
            first -= 1
        return list(segments[first:])

    def add(self, segment: Segment) -> None:
        """A new active segment."""
        with self._publishing:
            self.segments = (*self.segments, segment)

    def seal(self, rolled: Sequence[Segment], last_timestamp: int) -> None:
        """List the oldest unsealed segments, which are fsynced, as sealed."""
        seal = self.state.next_seal
        for segment in rolled:
            if not segment.count:  # all of it is damaged: let its age run from now
                segment.first_timestamp = segment.last_timestamp = last_timestamp
        entries = [segment.entry(seal + number) for number, segment in enumerate(rolled)]
        for segment, entry in zip(rolled, entries, strict=True):
            if segment.derived is not None:
                self._save_companions(segment.stem, segment.derived, entry)
        self.save(
            sealed=(*self.state.sealed, *entries),
            tail_base=entries[-1].end,
            next_seal=seal + len(entries),
            last_timestamp=last_timestamp,
        )
        for segment, entry in zip(rolled, entries, strict=True):
            segment.seal = entry.seal
            self._cache.touch(segment)

    def _save_companions(self, stem: str, derived: Derived, entry: SealedSegment) -> None:
        """Beside the segment, if there is space: they can be rebuilt. What views carry cannot: then there must be."""
        try:
            companions.save(self._disk, stem, derived, base=entry.base, seal=entry.seal)
        except DiskFull:
            if derived.carries:
                raise

    # --- leader epochs

    def begin_epoch(self, epoch: int, offset: int) -> None:
        """Records from `offset`, the end, on belong to leader epoch `epoch`."""
        latest = self.state.epochs[-1].epoch if self.state.epochs else -1
        if epoch <= latest:
            raise StaleEpoch(f"leader epoch {epoch} is not newer than {latest}")
        kept = tuple(entry for entry in self.state.epochs if entry.start_offset < offset)
        self.save(epochs=(*kept, LeaderEpoch(epoch, offset)))

    def epoch_end(self, epoch: int, end: int) -> LeaderEpoch:
        """The newest leader epoch not after `epoch`, with the offset where it ends; the last one ends at `end`."""
        entries = self.state.epochs
        at = bisect_right(entries, epoch, key=attrgetter("epoch"))
        if at == 0:
            return LeaderEpoch(-1, self.state.start_offset)
        return LeaderEpoch(entries[at - 1].epoch, entries[at].start_offset if at < len(entries) else end)

    # --- shrinking

    def truncate(self, offset: int, reader: Reader, settings: LogSettings) -> None:
        """Drop every record at or above `offset`; all that is written must be durable.

        Segments that stay keep what their views have inherited; a new one inherits from the last of them.
        """
        sealed = self.state.sealed
        kept = [entry for entry in sealed if entry.end <= offset]
        changes: dict[str, object] = {}
        inherited = {segment.base: segment.derived for segment in self.unsealed() if segment.derived is not None}
        before = cut = None
        if len(kept) < len(sealed):
            changes["tail_base"] = offset
            last = next((segment for segment in self.segments if segment.base < offset <= segment.end), None)
            if last is not None:
                before = reader.derived(last)
                if last.end > offset:
                    cut = self._shorten(last, offset, reader)
                    kept.append(cut)
        epochs = tuple(entry for entry in self.state.epochs if entry.start_offset < offset)
        self.save(sealed=tuple(kept), truncate_to=offset, epochs=epochs, **changes)
        self._retire(segment for segment in self.segments if segment.end > offset)
        current = {segment.base: segment for segment in self.segments if not segment.retired}
        try:
            self.state = truncate_tail(self._disk, self._directory, self.mark, self.state)
            if before is not None and cut is not None:
                current[cut.base] = self._shortened(cut, before, reader)
                before = current[cut.base].derived
            tail = recover_tail(
                self._disk, self._directory, settings, self._kinds, self.state, self.mark, inherited, before
            )
        except DiskFull as error:
            raise OSError(f"truncating to {offset} is decided and will be done at opening: {error}") from error
        if kept and kept[-1].end == offset:
            self._shorten_file(kept[-1])
        self.segments = (*(current[entry.base] for entry in kept), *tail)

    def _shorten_file(self, entry: SealedSegment) -> None:
        """Free what lies past the end; nobody reads it, so nothing depends on it."""
        file = self._disk.open(f"{self._directory}/{entry.base:020d}.log")
        try:
            if file.size() > entry.size:
                file.truncate(entry.size)
        finally:
            file.close()

    def _shorten(self, segment: Segment, offset: int, reader: Reader) -> SealedSegment:
        """A sealed segment's entry with everything from `offset` on left out."""
        size, count, last = reader.measure(segment, offset)
        entry = segment.entry(self.take_seal())
        return msgspec.structs.replace(entry, end=offset, size=size, count=count, last_timestamp=last)

    def _shortened(self, entry: SealedSegment, derived: Derived, reader: Reader) -> Segment:
        """The segment of an entry that was made shorter; `derived` is from before that."""
        segment = Segment.sealed(self._directory, entry)
        segment.derived = reader.rebuild(segment, derived.anew())
        self._save_companions(segment.stem, segment.derived, entry)
        self._cache.touch(segment)
        return segment

    def remove(self, old: Sequence[SealedSegment], *, start_offset: int = 0) -> bool:
        """Remove consecutive sealed segments; False when they are no longer what is there.

        Their range of offsets goes to the segment before them, as cleaned, or the log starts after them.
        """
        if not self._has(old):
            return False
        listed = [entry for entry in self.state.sealed if entry not in old]
        start = max(self.state.start_offset, start_offset)
        if old:
            before = next((at for at, entry in enumerate(listed) if entry.end == old[0].base), None)
            if before is None:
                start = max(start, old[-1].end)
            else:
                traits = listed[before].traits | Trait.CLEANED
                listed[before] = msgspec.structs.replace(listed[before], end=old[-1].end, traits=traits)
        self.save(sealed=tuple(listed), start_offset=start, epochs=_from(self.state.epochs, start))
        self._follow(old, listed)
        return True

    def replace(
        self, old: Sequence[SealedSegment], new: SealedSegment, *, source: str | None, derived: Derived | None
    ) -> bool:
        """Put a segment, written to the file `source`, in place of consecutive sealed ones; False as for `remove`.

        Without a source the file stays as it is and only what is said about it changes.
        """
        if not self._has(old) or (source is not None and not self._disk.exists(source)):
            return False
        listed = sorted([*(entry for entry in self.state.sealed if entry not in old), new], key=_BASE)
        view = None
        if derived is not None:
            view = view_path(self._directory, new.base, new.seal)
            companions.save_views(self._disk, view, derived, base=new.base, seal=new.seal)
        self.save(sealed=tuple(listed))  # which makes the names of both new files durable, too
        self._follow(old, listed, source=source, view=view, target=new.base)
        if derived is not None:
            self._save_indexes(f"{self._directory}/{new.base:020d}", derived, new)
        return True

    def _save_indexes(self, stem: str, derived: Derived, entry: SealedSegment) -> None:
        try:
            companions.save_indexes(self._disk, stem, derived, base=entry.base, seal=entry.seal)
        except DiskFull:
            pass

    def _has(self, entries: Sequence[SealedSegment]) -> bool:
        return set(entries) <= set(self.state.sealed)

    def _follow(
        self,
        old: Sequence[SealedSegment],
        listed: Iterable[SealedSegment],
        *,
        source: str | None = None,
        view: str | None = None,
        target: int | None = None,
    ) -> None:
        """Make files and memory agree with the state that was just saved."""
        bases = {entry.base for entry in old}
        self._retire(segment for segment in self.segments if segment.base in bases and segment.seal)
        if source is not None:
            self._disk.rename(source, f"{self._directory}/{target:020d}.log")
        if view is not None:
            self._disk.rename(view, f"{self._directory}/{target:020d}.view")
        for base in bases:
            if base != target:
                remove_segment(self._disk, self._directory, base)
        self._disk.sync_directory(self._directory)
        with self._publishing:
            current = {segment.base: segment for segment in self.segments if not segment.retired}
            for entry in listed:
                if entry.base in current:
                    current[entry.base].traits = Trait(entry.traits)  # first: whoever sees the end knows of the gap
                    current[entry.base].end = entry.end
                else:
                    current[entry.base] = Segment.sealed(self._directory, entry)
            self.segments = tuple(sorted(current.values(), key=_BASE))

    def retire_all(self) -> None:
        """Nobody reads or writes any of the files again."""
        self._retire(self.segments)

    def _retire(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            segment.retired = True
            self._files.forget(segment.key)
            self._cache.drop(segment)
