"""The HTTP door: batches from raw sockets with ready-made bodies, single messages from wrk."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.blocks import texts
from bench.callers import HttpCaller, http_request
from bench.load import Batch, Generator
from bench.processes import BrokerProcess, Failed, scratch
from bench.report import Figure, Run
from bench.timing import median

PARTITIONS: Final = 3
BATCH_MESSAGES: Final = 1000
BATCH_CONNECTIONS: Final = 4
BATCH_RATE: Final = 100_000
WRK_CONNECTIONS: Final = 16
SINGLE_RATE: Final = 8_000
SINGLE_P99_MS: Final = 10.0
_WRK_BODIES: Final = 100
_MILLISECONDS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_TOPIC: Final = "bench"


def batch(run: Run) -> Iterator[Figure]:
    """Messages with keys over three partitions, acks leader."""
    rounds, requests = (3, 50) if run.short else (7, 100)
    with scratch() as directory, BrokerProcess(directory) as broker, Generator(directory) as generator:
        _create(broker)
        job = Batch(
            address=broker.http,
            topic=_TOPIC,
            messages=BATCH_MESSAGES,
            requests=requests,
            connections=BATCH_CONNECTIONS,
        )
        rates, burdens, generator_busy = [], [], []
        for turn in range(rounds + 1):
            before = _Burden.of(broker)
            done = generator.do(job)
            if turn:  # the first only warms up
                rates.append(done.rate)
                burdens.append(_Burden.of(broker).since(before, done.seconds))
                generator_busy.append(done.cpu_s / done.seconds)
                run.say(f"batch, {turn} of {rounds}: {done.rate:,.0f} msg/s")
    how = (
        f"median of {rounds} runs of {requests * BATCH_CONNECTIONS} requests, {BATCH_CONNECTIONS} connections; "
        f"{_show(burdens)}, generator {median(generator_busy):.0%}"
    )
    yield Figure(f"HTTP publish, batches of {BATCH_MESSAGES} x 1 KB", median(rates), "msg/s", BATCH_RATE, note=how)


def single(run: Run) -> Iterator[Figure]:
    """One message a request, as fast as wrk gets answers."""
    rate = "HTTP publish, one 1 KB message a request"
    slow = f"{rate}, p99"
    wrk = shutil.which("wrk")
    if wrk is None:
        why = "not measured: wrk is not installed (Debian: apt-get install wrk)"
        yield Figure(rate, None, "msg/s", SINGLE_RATE, note=why)
        yield Figure(slow, None, "ms", SINGLE_P99_MS, at_most=True, note=why)
        return
    rounds, duration_s = (2, 3) if run.short else (5, 10)
    with scratch() as directory, BrokerProcess(directory) as broker:
        _create(broker)
        script = Path(directory, "publish.lua")
        script.write_text(_script())
        found, burdens = [], []
        for turn in range(rounds + 1):
            before = _Burden.of(broker)
            seconds = duration_s if turn else 1  # the first only warms up
            one = _run_wrk(wrk, script, broker.http, seconds)
            if turn:
                found.append(one)
                burdens.append(_Burden.of(broker).since(before, seconds))
                run.say(f"single, {turn} of {rounds}: {one.rate:,.0f} msg/s, p99 {one.p99_ms:.3g} ms")
    how = f"wrk, {WRK_CONNECTIONS} connections, median of {rounds} x {duration_s} s; {_show(burdens)}"
    yield Figure(rate, median([one.rate for one in found]), "msg/s", SINGLE_RATE, note=how)
    yield Figure(f"{rate}, p50", median([one.p50_ms for one in found]), "ms", note=how)
    yield Figure(slow, median([one.p99_ms for one in found]), "ms", SINGLE_P99_MS, at_most=True, note=how)


class _Burden(NamedTuple):
    """What a broker used of the cores, and how long it waited for one while others had them: seconds, or shares."""

    ran: float
    waited: float

    @classmethod
    def of(cls, broker: BrokerProcess) -> "_Burden":
        return cls(broker.cpu_s, broker.kept_waiting_s)

    def since(self, before: "_Burden", seconds: float) -> "_Burden":
        return _Burden((self.ran - before.ran) / seconds, (self.waited - before.waited) / seconds)


def _show(burdens: list[_Burden]) -> str:
    ran, waited = (median([burden[at] for burden in burdens]) for at in range(2))
    return f"broker {ran:.0%} of a core, kept waiting {waited:.0%}"


def _create(broker: BrokerProcess) -> None:
    caller = HttpCaller(broker.http)
    caller.call(http_request("POST", "/topics", {"name": _TOPIC, "num_partitions": PARTITIONS}))
    caller.close()


class Wrk(NamedTuple):
    """What wrk said."""

    rate: float
    p50_ms: float
    p99_ms: float


def _run_wrk(wrk: str, script: Path, address: str, seconds: int) -> Wrk:
    said = subprocess.run(
        [wrk, "-t1", f"-c{WRK_CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", str(script), f"http://{address}/"],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    if said.returncode:
        raise Failed(f"wrk ended with status {said.returncode}: {said.stderr.strip() or said.stdout.strip()}")
    return parse_wrk(said.stdout)


def parse_wrk(output: str) -> Wrk:
    """The rate and quantiles in wrk's report; an answer that was no success makes it worthless."""
    for trouble in ("Non-2xx", "Socket errors"):
        if trouble in output:
            raise Failed("wrk met errors:\n" + output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    quantiles = {share: _ms(value, unit) for share, value, unit in re.findall(r"(\d+)%\s+([\d.]+)([a-z]+)", output)}
    if rate is None or not {"50", "99"} <= quantiles.keys():
        raise Failed("wrk said something else than expected:\n" + output)
    return Wrk(float(rate[1]), quantiles["50"], quantiles["99"])


def _ms(value: str, unit: str) -> float:
    return float(value) * _MILLISECONDS[unit]


def _script() -> str:
    """Requests with other keys and values, built once, sent in turn."""
    bodies = ",\n".join(f"  [[{msgspec.json.encode(text).decode()}]]" for text in texts(_WRK_BODIES))
    return f"""\
local bodies = {{
{bodies}
}}
local requests = {{}}
init = function()
  for at, body in ipairs(bodies) do
    requests[at] = wrk.format("POST", "/topics/{_TOPIC}/publish", {{["Content-Type"] = "application/json"}}, body)
  end
end
local at = 0
request = function()
  at = at % #requests + 1
  return requests[at]
end
"""
