"""The HTTP door and the clients that people have: what they say beside their requests must not be in the way.

A client that is not on this machine is left out.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import RunningBroker, running_broker
from tests.support.patience import PATIENCE_S

JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;

public class Client {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();  // offers HTTP/2 with its first request
        URI topics = URI.create("http://" + arguments[0] + "/topics");
        URI publish = URI.create("http://" + arguments[0] + "/topics/java/publish");
        for (HttpRequest request : new HttpRequest[] {
            HttpRequest.newBuilder(topics).POST(BodyPublishers.ofString("{\\"name\\": \\"java\\"}")).build(),
            HttpRequest.newBuilder(publish).POST(BodyPublishers.ofString("{\\"value\\": \\"a\\"}")).build(),
            HttpRequest.newBuilder(topics).build(),
        }) {
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version() + " " + answer.body());
        }
    }
}
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("clients")) as broker:
        yield broker


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no java here")
def test_javas_own_client_talks_to_the_broker(broker: RunningBroker, tmp_path: Path) -> None:
    program = tmp_path / "Client.java"
    program.write_text(JAVA, encoding="utf-8")
    lines = output("java", "-XX:TieredStopAtLevel=1", str(program), broker.http).splitlines()
    assert [line.split()[:2] for line in lines] == [["201", "HTTP_1_1"], ["200", "HTTP_1_1"], ["200", "HTTP_1_1"]]
    assert json.loads(lines[-1].split(maxsplit=2)[2]) == {"topics": ["java"]}


def curl_knows_http_2() -> bool:
    return shutil.which("curl") is not None and "HTTP2" in output("curl", "--version")


@pytest.mark.skipif(not curl_knows_http_2(), reason="there is no curl here that knows HTTP/2")
@pytest.mark.parametrize("body", ["", '{"name": "curl"}'])
def test_curl_may_ask_for_http_2(broker: RunningBroker, body: str) -> None:
    data = ["-d", body] if body else []
    said = output("curl", "-s", "--http2", "-w", " %{http_version} %{http_code}", *data, f"http://{broker.http}/topics")
    assert said.endswith(" 1.1 201" if body else " 1.1 200")
