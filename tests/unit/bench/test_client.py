"""The figures of the client's room: what limits them, and what is said when they cannot be measured."""

import resource

import pytest

from bench import client, client_ground, client_idle
from bench.client_ground import Round, burden, quantile_figures, rate_figure
from bench.client_load import Done
from bench.report import Run


def one(*, client_s: float, server_s: float, client_waited_s: float = 0.0, server_waited_s: float = 0.0) -> Round:
    done = Done(seconds=1.0, cpu_s=client_s, messages=1000, p50_ms=1.0, p99_ms=3.0, samples=500)
    return Round(done, server_s, server_waited_s, client_waited_s)


def test_the_process_that_is_always_busy_limits_the_figure() -> None:
    assert burden([one(client_s=0.95, server_s=0.5)]).startswith("bound by the client's core: client 950.00 us/msg")
    assert burden([one(client_s=0.3, server_s=0.9)], "yardstick").startswith("bound by the yardstick's core:")
    assert burden([one(client_s=0.3, server_s=0.3)]).startswith("bound by no core:")


def test_a_machine_that_others_use_is_said() -> None:
    text = burden([one(client_s=0.6, server_s=0.3, client_waited_s=0.35)])
    assert text.startswith("bound by the client's core (others had the cores for much of the time)")


def test_a_rate_is_the_median_of_its_rounds() -> None:
    rounds = [one(client_s=0.9, server_s=0.1)._replace(done=Done(seconds=s, cpu_s=s, messages=100)) for s in (1, 2, 4)]
    figure = rate_figure("x", rounds, 60, "1 KB")
    assert (figure.value, figure.met) == (50.0, False)
    assert "median of 3 x 100 messages" in figure.note


def test_quantiles_have_bounds_of_their_own() -> None:
    p50, p99 = quantile_figures("x", [one(client_s=0.1, server_s=0.1)], 2.0, 2.0, "paced")
    assert (p50.value, p50.met, p99.value, p99.met) == (1.0, True, 3.0, False)


def test_without_enough_open_files_the_figure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))
    (figure,) = client_idle.connections(Run(short=True, say=print))
    assert (figure.value, figure.met) == (None, None)
    assert "the 512 allowed here" in figure.note


def test_more_open_files_are_allowed_only_as_long_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    with client_idle._open_files(1200) as allowed:
        assert allowed
        assert limits[-1] == (1200, 4096)
    assert limits[-1] == (256, 4096)


def test_a_short_publish_has_a_rate_a_share_and_the_yardsticks_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SHORT_MESSAGES", 4000)
    rate, share, bare = client.publish(Run(short=True, say=print))
    assert rate.target == client.PUBLISH_RATE
    assert share.target == 0.6
    assert rate.value is not None
    assert bare.value is not None
    assert share.value == pytest.approx(rate.value / bare.value)
    assert client_ground.FEATURES in rate.note
