"""What `reg gateway` adds to a request, and whether it picks the right expert: 500 prompts of five domains.

    python -m benchmarks.gateway [--shared ../shared] [--work build/gateway] [--prompts 100]

The five experts of SHARED/experts are composed by `--to adapters`, at rank 8, from counts of their text. A prompt is
the beginning of a document of test text, of 30 to 130 tokens; *right* is the share that goes to the expert of its
domain. Some prompts run through the model too, which must go on with the same expert. The server of adapters answers at
once, so that the time through the gateway, which is a process of its own, less the time without it, is what it adds;
both are asked in turn.
"""

import argparse
import gzip
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from typing import Any
from urllib.parse import urlsplit

import torch

from registry import PassSettings, Recipe, Registry
from registry.composition.route import route
from registry.io.http_server import listen
from registry.serving.gateway import EXPERT

DOMAINS = ("biomed", "code", "german", "literature", "math")
ROOT = Path(__file__).parents[1]
RANK, COMPARED = 8, 10  # prompts of a domain that the model routes too


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


@contextmanager
def adapters() -> Iterator[str]:
    """Run a server that answers everything at once, and yield its address."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()


@contextmanager
def running(folder: Path, url: str) -> Iterator[str]:
    """Run the gateway in a process of its own, and yield its address."""
    with listen(0) as free:
        own = f"127.0.0.1:{free.getsockname()[1]}"
    words = ["gateway", str(folder), "--server", url, "--port", own.rpartition(":")[2]]
    with Popen([Path(sys.executable).with_name("reg"), "--quiet", *words], stdout=DEVNULL) as process:
        while process.poll() is None:
            with suppress(ConnectionError), closing(HTTPConnection(own)) as connection:
                connection.connect()
                break
            time.sleep(0.1)
        yield own
        process.terminate()


def composed(shared: Path, work: Path) -> Path:
    """Return the folder of the five experts, made if it is not there."""
    folder = work / "both"
    if not folder.exists():
        with Registry(work / "home") as registry:
            registry.add_base("base", shared / "experts" / "base")
            for name in DOMAINS:
                text = [shared / "corpora" / name / "train.jsonl.gz"]
                settings = PassSettings(sites="counts")
                registry.add_expert(name, shared / "experts" / name, data=text, settings=settings)
            registry.compose(list(DOMAINS), folder, Recipe(to="adapters", rank=RANK))
    return folder


def prompts(shared: Path, number: int) -> list[tuple[str, str]]:
    """Return (domain, prompt): the first words of documents of test text."""
    found = []
    for domain in DOMAINS:
        with gzip.open(shared / "corpora" / domain / "test.jsonl.gz", "rt", encoding="utf-8") as file:
            texts = [str(json.loads(line)["text"]) for line in file]
        for index in range(number):
            text = texts[index % len(texts)]
            start = 400 * (index // len(texts))
            found.append((domain, text[start : start + 120 + 30 * (index % 10)]))
    return found


def asked(connection: HTTPConnection, text: str) -> tuple[float, str | None]:
    """Return the seconds of a request, and the expert that its answer names."""
    body = json.dumps({"prompt": text, "max_tokens": 1})
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return time.perf_counter() - start, answer.headers.get(EXPERT)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=Path("build/gateway"), help="default: %(default)s")
    parser.add_argument("--prompts", type=int, default=100, help="of each domain; default: %(default)s")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = composed(given.shared, given.work)
    texts = prompts(given.shared, given.prompts)
    with (
        adapters() as url,
        running(folder, url) as own,
        closing(HTTPConnection(own)) as through,
        closing(HTTPConnection(urlsplit(url).netloc)) as plain,
    ):
        asked(through, texts[0][1])
        added, picks = [], []
        for _, text in texts:
            without, _ = asked(plain, text)
            taken, expert = asked(through, text)
            added.append(taken - without)
            picks.append(expert)
    for domain in DOMAINS:
        mine = [pick == domain for (own, _), pick in zip(texts, picks, strict=True) if own == domain]
        print(f"{domain}: {sum(mine)} of {len(mine)} prompts", flush=True)
    right = sum(pick == domain for (domain, _), pick in zip(texts, picks, strict=True)) / len(texts)
    milliseconds = sorted(1000 * one for one in added)
    last = milliseconds[int(0.95 * len(milliseconds))]
    print(f"right {right:.1%}; added {median(milliseconds):.2f} ms a prompt, 95 % below {last:.2f} ms", flush=True)
    few = [index for index in range(len(texts)) if index % given.prompts < COMPARED]
    alike = sum(route(folder, texts[index][1], "cpu").tokens[-1].overall == picks[index] for index in few)
    print(f"the model itself goes on with the same expert in {alike} of {len(few)}")


if __name__ == "__main__":
    main()
