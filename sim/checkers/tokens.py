"""A token commits once, and those of a name only grow."""

from sim.checkers import require
from sim.rooms.deeds import Deeds

RULE = "tokens"


def check_answer(deeds: Deeds, name: str, token: int, *, duplicate: bool) -> None:
    last = deeds.tokens.get(name, 0)
    if duplicate:
        require(token >= last, RULE, f"token {token} of {name} is taken as the last one, which is {last}")
    else:
        require(token > last, RULE, f"token {token} of {name} is committed after {last}")
    deeds.tokens[name] = max(token, last)


def check(deeds: Deeds, tokens: dict[str, int]) -> None:
    """`tokens`: the last of each name, as the coordinator has them."""
    for name, last in deeds.tokens.items():
        now = tokens.get(name, 0)
        require(now >= last, RULE, f"token {last} of {name} was answered, and the last one is {now}")
    for (name, token), batches in deeds.batches.items():
        done = [batch for batch in dict.fromkeys(batches) if any(deeds.by_number[number].shown for number in batch)]
        require(len(done) <= 1, RULE, f"token {token} of {name} has committed {done}")
        for batch in done:
            whole = all(deeds.by_number[number].shown is not False for number in batch)
            require(whole, RULE, f"token {token} of {name} has committed only some of {sorted(batch)}")
