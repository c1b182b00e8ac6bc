"""One group on one partition: what it was delivered, what of that it settled, and what it has to try again.

Every offset of the partition is in exactly one place: *settled*; *leased*, delivered and not settled yet; *pledged*,
settled if a transaction commits; *waiting*, because its delivery failed and its time has not come; *dead*, on its way
to the dead-letter topic; or none of these: then it is *ready*, unless it is delayed, undecided or cancelled for all
groups, which is not known here.

A delivery that failed is remembered as a try. A handle, that is a poll and an offset, may settle the offset as long as
the poll is the last one that was delivered it, also when the lease has lapsed since; giving it back ends that.

Invariants: leased, pledged, waiting, dead and settled offsets are apart; `taken` is all of the first four.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from pyroaring import BitMap64

from goqueue.base.offset_sets import column, cut_below, cut_from, pack, ranged, unpack, within
from goqueue.delivery.holds import Hold, Lease, Wait
from goqueue.delivery.records import Delivered, HeldLease, HeldPledge, HeldTry, HeldWait, Leased
from goqueue.delivery.settled import SettledSet
from goqueue.delivery.tries import Tries, Try
from goqueue.model.names import GroupNumber

_NO_EPOCH: Final = 0
_NO_POLL: Final = 0


class Pledge:
    """What is settled if a transaction commits."""

    __slots__ = ("counted", "offsets")

    def __init__(self, offsets: BitMap64, counted: BitMap64) -> None:
        self.offsets = offsets
        self.counted = counted
        """Those whose lease had lapsed: that delivery is among the tries already."""


class Delivery:
    """Changed only by what the sidecar log says."""

    __slots__ = ("assignment_epoch", "dead", "ended", "keys", "leases", "pledges", "settled", "taken", "tries", "waits")

    def __init__(self, low: int) -> None:
        self.settled = SettledSet(low)
        self.assignment_epoch = _NO_EPOCH
        """Of the owner who was last delivered something."""
        self.leases: dict[int, list[Lease]] = {}
        """By poll, in the order in which they were made. One poll has several when some of it was extended."""
        self.pledges: dict[int, Pledge] = {}
        """By transaction."""
        self.waits: list[Wait] = []
        self.tries = Tries()
        """Of what is not settled and was delivered before, not counting a lease that lasts."""
        self.dead = BitMap64()
        self.taken = BitMap64()
        self.ended: list[Hold] = []
        """Soft: holds that are over, for whoever waits for them to end."""
        self.keys: dict[int, int] = {}
        """In key mode: the hash of the key of everything that was delivered and is not settled."""

    # --- looking

    @property
    def low(self) -> int:
        return self.settled.low

    @property
    def end(self) -> int:
        """Nothing from here on was ever delivered, or settled, or is waiting."""
        taken = self.taken.max() + 1 if self.taken else 0
        return max(self.settled.end, taken, max(self.tries, default=-1) + 1)

    @property
    def is_resting(self) -> bool:
        """Whether the low mark says it all."""
        return not self.taken and not self.tries and self.settled.is_plain

    @property
    def in_flight(self) -> int:
        """Offsets that are leased."""
        return sum(len(lease.offsets) for lease in self._all_leases())

    @property
    def unsettled(self) -> int:
        """Offsets that were delivered and are not settled: what this costs."""
        if not self.tries:
            return len(self.taken)
        return len(self.taken) + len(self.tries) - self.taken.intersection_cardinality(self.tries.offsets)

    def held_by(self, holder: str) -> int:
        """Offsets leased to one holder."""
        return sum(len(lease.offsets) for lease in self._all_leases() if lease.holder == holder)

    @property
    def last_poll(self) -> int:
        """The highest number of a poll that holds something, or may still settle something."""
        return max([*self.leases, *(each.poll for each in self.tries.values())], default=_NO_POLL)

    def has_stale_leases(self, assignment_epoch: int) -> bool:
        """Whether an earlier owner still holds something, or could still settle something."""
        return self.assignment_epoch < assignment_epoch and (bool(self.leases) or bool(self.tries))

    def is_free(self, offsets: BitMap64) -> bool:
        """Whether none of these is settled and nobody has one."""
        return not offsets.intersect(self.taken) and not self.settled.holds_any(offsets)

    def deliveries_of(self, offset: int) -> int:
        """How often it was delivered before."""
        found = self.tries.get(offset)
        return 0 if found is None else found.deliveries

    def of_poll(self, poll: int, offsets: BitMap64) -> BitMap64:
        """Those that a handle of this poll may settle."""
        good = self.leased_to(poll, offsets)
        if self.tries and len(good) < len(offsets):
            good |= self._lapsed_of(poll, offsets)
        return good

    def leased_to(self, poll: int, offsets: BitMap64) -> BitMap64:
        """Those that a poll still holds."""
        found = BitMap64()
        for lease in self.leases.get(poll, ()):
            found |= lease.offsets & offsets
        return found

    def _lapsed_of(self, poll: int, offsets: BitMap64) -> BitMap64:
        tried = (offsets & self.tries.offsets) - self.taken
        return BitMap64([offset for offset in column(tried) if self.tries[offset].poll == poll])

    def below(self, below: int, to: int, holder: str) -> BitMap64:
        """What a commit settles: what polls up to `to` were delivered below an offset, and still may settle."""
        found = BitMap64()
        for lease in self._all_leases():
            if lease.poll <= to and holder in ("", lease.holder):
                found |= within(lease.offsets, 0, below)
        if not holder:
            found |= BitMap64(
                [
                    offset
                    for offset, each in self.tries.items()
                    if offset < below and _NO_POLL < each.poll <= to and offset not in self.taken
                ]
            )
        return found

    def leases_of(self, after: int, to: int, holder: str) -> list[Lease]:
        """Those of polls after `after`, up to `to`."""
        return [lease for lease in self._all_leases() if after < lease.poll <= to and holder in ("", lease.holder)]

    def _all_leases(self) -> Iterator[Lease]:
        return (lease for leases in self.leases.values() for lease in leases)

    @property
    def holds(self) -> list[Hold]:
        return [*self._all_leases(), *self.waits]

    def overtaken(self, start: int, cancelled: BitMap64) -> int:
        """How many offsets lie before `start`, where the partition begins by now, and were to be delivered."""
        if start <= self.low:
            return 0
        gone = ranged(self.low, start) - self.settled.above - self.taken - cancelled
        return len(gone)

    # --- changing

    def lease(self, event: Leased) -> Lease:
        self.assignment_epoch = event.assignment_epoch
        offsets = unpack(event.offsets)
        if self.waits and offsets.intersect(self.taken):  # their waits were over, which is not written down
            self._let_go(offsets)
        lease = Lease(event.poll, event.holder, offsets, event.until, event.span_ms)
        self.leases.setdefault(event.poll, []).append(lease)
        self.taken |= offsets
        if event.keys:
            hashes = zip(column(offsets), unpack_keys(event.keys), strict=True)
            self.keys.update((offset, key) for offset, key in hashes if key)
        return lease

    def raise_to(self, start: int) -> BitMap64:
        """Below `start` there is nothing left to deliver: what is neither leased nor dead counts as settled.

        Returns those of it that were delivered before.
        """
        if start <= self.low:
            return BitMap64()
        for wait in self.waits:  # whether one is over is not written down, so it must not matter
            self._let_go(within(wait.offsets, 0, start))
        tried = within(self.tries.offsets, 0, start) - self.taken
        self._forget_tries(tried)
        if self.taken and self.taken.min() < start:
            self.settled.add(ranged(self.low, start) - self.taken)
        else:
            self.settled.raise_to(start)
        return tried

    def settle(self, offsets: BitMap64) -> None:
        """Done with, wherever they are."""
        if offsets.intersect(self.taken):
            self._let_go(offsets)
        self._forget_tries(offsets)
        self.settled.add(offsets)

    def _let_go(self, offsets: BitMap64) -> None:
        """Nobody has these any more."""
        left = len(offsets)
        for poll, leases in list(self.leases.items()):
            if not left:
                break
            if not any(lease.offsets.intersect(offsets) for lease in leases):
                continue
            for lease in leases:
                left -= lease.offsets.intersection_cardinality(offsets)
                lease.offsets -= offsets
            self._keep_leases(poll, leases)
        self.taken -= offsets
        if not left:
            return
        for wait in self.waits:
            wait.offsets -= offsets
        self.ended += [wait for wait in self.waits if not wait.offsets]
        self.waits = [wait for wait in self.waits if wait.offsets]
        self.dead -= offsets
        for transaction, pledge in list(self.pledges.items()):
            pledge.offsets -= offsets
            pledge.counted -= offsets
            if not pledge.offsets:
                del self.pledges[transaction]

    def _keep_leases(self, poll: int, leases: list[Lease]) -> None:
        """Those that still hold something."""
        self.ended += [lease for lease in leases if not lease.offsets]
        left = [lease for lease in leases if lease.offsets]
        if left:
            self.leases[poll] = left
        else:
            del self.leases[poll]

    def _forget_tries(self, offsets: BitMap64) -> None:
        if self.tries:
            self.tries.forget(offsets)
        if self.keys:
            for offset in (
                column(offsets) if len(offsets) <= len(self.keys) else [key for key in self.keys if key in offsets]
            ):
                self.keys.pop(offset, None)

    def fail(self, offsets: BitMap64, poll: int) -> None:
        """Their delivery failed: they are ready again. A handle of `poll` may still settle them; of 0 none may."""
        self._let_go(offsets)
        self.tries.fail(offsets, poll)

    def defer(self, offsets: BitMap64, until: int, span_ms: int) -> Wait:
        """Their delivery failed, and they are not tried again at once."""
        self.fail(offsets, _NO_POLL)
        wait = Wait(offsets, until, span_ms)
        self.waits.append(wait)
        self.taken |= offsets
        return wait

    def pledge(self, transaction: int, offsets: BitMap64) -> None:
        """Nobody is delivered them until the transaction ends, and no handle may settle them any more."""
        leased = BitMap64()
        for lease in self._all_leases():
            leased |= lease.offsets & offsets
        self._let_go(leased)
        lapsed = offsets - leased
        for offset in column(lapsed):
            self.tries[offset] = self.tries[offset]._replace(poll=_NO_POLL)
        found = self.pledges.setdefault(transaction, Pledge(BitMap64(), BitMap64()))
        found.offsets |= offsets
        found.counted |= lapsed
        self.taken |= offsets

    def pledged(self, transaction: int) -> BitMap64:
        found = self.pledges.get(transaction)
        return BitMap64() if found is None else found.offsets.copy()

    def unpledge(self, transaction: int) -> BitMap64:
        """It was aborted: they are ready again, and the delivery counts."""
        pledge = self.pledges[transaction]
        offsets, counted = pledge.offsets.copy(), pledge.counted.copy()
        self._let_go(offsets)
        self.tries.fail(offsets - counted, _NO_POLL)
        return offsets

    def wait_over(self, wait: Wait) -> None:
        """Its time has come: they are ready. That is not written down; it can be told from the time."""
        if wait in self.waits:
            self.waits.remove(wait)
            self.taken -= wait.offsets

    def extend(self, poll: int, offsets: BitMap64, until: int, span_ms: int) -> Lease:
        leases = self.leases[poll]
        held = BitMap64()
        for lease in leases:
            held |= lease.offsets & offsets
            lease.offsets -= offsets
        extended = Lease(poll, leases[0].holder, held, until, span_ms)
        self._keep_leases(poll, [*leases, extended])
        return extended

    def doom(self, offsets: BitMap64) -> None:
        """They are dead. Their tries stay until they are buried, for the count."""
        uncounted = BitMap64()
        for lease in self._all_leases():
            uncounted |= lease.offsets & offsets
        for pledge in self.pledges.values():
            uncounted |= (pledge.offsets - pledge.counted) & offsets
        self._let_go(offsets)
        self.tries.fail(uncounted, _NO_POLL)
        self.dead |= offsets
        self.taken |= offsets

    def give_back(self, offsets: BitMap64) -> None:
        """As if the replies they are leased by had not been made: that does not count as a delivery."""
        self._let_go(offsets)
        for offset in column(offsets) if self.keys else ():
            if offset not in self.tries:
                self.keys.pop(offset, None)

    def lapsed_of(self, after: int, to: int) -> list[int]:
        """What polls after `after`, up to `to`, were delivered last and may still settle: their leases lapsed."""
        return [offset for offset, each in self.tries.items() if after < each.poll <= to and offset not in self.taken]

    def forgive(self, offsets: Iterable[int]) -> None:
        """They were not delivered by the last poll after all, so it may not settle them either."""
        for offset in offsets:
            deliveries = self.tries[offset].deliveries - 1
            if deliveries:
                self.tries[offset] = Try(deliveries, _NO_POLL)
            else:
                del self.tries[offset]
                self.keys.pop(offset, None)

    def open(self, assignment_epoch: int) -> BitMap64:
        """Whoever held something no longer does, and can settle nothing."""
        held = BitMap64()
        for lease in self._all_leases():
            held |= lease.offsets
        self.fail(held, _NO_POLL)
        self.tries = Tries({offset: each._replace(poll=_NO_POLL) for offset, each in self.tries.items()})
        self.assignment_epoch = assignment_epoch
        return held

    def clip(self, end: int) -> None:
        """Offsets from `end` on were lost, and will be other messages.

        Then nobody holds anything any more: a late commit of before must find no lease that it could settle.
        """
        if end >= self.end:
            return
        self.settled.clip(end)
        self.open(self.assignment_epoch)
        lost = self.taken.copy()
        cut_below(lost, end)
        self._let_go(lost)
        lost = self.tries.offsets.copy()
        cut_below(lost, end)
        self.tries.forget(lost)
        for offset in [offset for offset in self.keys if offset >= end]:
            del self.keys[offset]
        cut_from(self.dead, end)

    # --- snapshots

    def to_record(self, group: GroupNumber) -> Delivered:
        return Delivered(
            group,
            self.low,
            self.assignment_epoch,
            self.settled.to_bytes(),
            tuple(
                HeldLease(lease.poll, lease.holder, lease.until, lease.span_ms, pack(lease.offsets))
                for lease in self._all_leases()
            ),
            tuple(HeldWait(wait.until, wait.span_ms, pack(wait.offsets)) for wait in self.waits),
            tuple(HeldTry(offset, *each) for offset, each in self.tries.items()),
            pack(self.dead),
            tuple(self.keys.items()),
            tuple(
                HeldPledge(transaction, pack(pledge.offsets), pack(pledge.counted))
                for transaction, pledge in self.pledges.items()
            ),
        )

    @classmethod
    def from_record(cls, record: Delivered) -> "Delivery":
        """Raises a ValueError when a bitmap in it is none."""
        delivery = cls(record.low)
        delivery.settled = SettledSet(record.low, record.settled)
        delivery.assignment_epoch = record.assignment_epoch
        for held in record.leases:
            lease = Lease(held.poll, held.holder, unpack(held.offsets), held.until, held.span_ms)
            delivery.leases.setdefault(held.poll, []).append(lease)
            delivery.taken |= lease.offsets
        for waiting in record.waits:
            wait = Wait(unpack(waiting.offsets), waiting.until, waiting.span_ms)
            delivery.waits.append(wait)
            delivery.taken |= wait.offsets
        for held_pledge in record.pledges:
            pledge = Pledge(unpack(held_pledge.offsets), unpack(held_pledge.counted))
            delivery.pledges[held_pledge.transaction] = pledge
            delivery.taken |= pledge.offsets
        delivery.dead = unpack(record.dead)
        delivery.taken |= delivery.dead
        delivery.tries = Tries({held.offset: Try(held.deliveries, held.poll) for held in record.tries})
        delivery.keys = dict(record.keys)
        return delivery


def pack_keys(keys: Iterable[int]) -> bytes:
    """Hashes of keys, four bytes each, big-endian; 0 for none."""
    return b"".join(key.to_bytes(4, "big") for key in keys)


def unpack_keys(data: bytes) -> Iterator[int]:
    return (int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4))
