"""Progress in lines, for whoever reads a log."""

import io

from goqueue.spark.pipelines.progress import LINE_S, Progress


def test_a_line_comes_now_and_then_and_at_the_end() -> None:
    now = [0.0]
    stream, saved = io.StringIO(), []
    progress = Progress(
        lambda each: saved.append((each.doing, each.done, each.total)), stream=stream, clock=lambda: now[0]
    )
    progress.begin("copying", 1000)
    progress.advance(100)
    now[0] = LINE_S
    progress.advance(400)
    now[0] = 10.0
    progress.advance(500)
    progress.advance(0)
    progress.begin("counting")
    progress.end()
    assert stream.getvalue().splitlines() == [
        "copying: 500 of 1,000 rows, 100/s",
        "copying: 1,000 of 1,000 rows, 100/s",
    ]
    assert saved[0] == ("copying", 0, 1000)
    assert saved[-1] == ("counting", 0, None)
