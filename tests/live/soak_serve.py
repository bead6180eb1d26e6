#!/usr/bin/env python3
"""Many requests of many clients at once against moec serve: Python alone.

    python3 tests/live/soak_serve.py [--moec build/moec] [--requests N] [--clients N] [--memory SIZE]

Completions of many prompts, greedy and drawn, whole and as streams, some with several choices, scoring requests and
conversations; one in eight is cut off at a random moment, one in ten is malformed. Every text must be that of moec run,
and every score that of the first time. Once all sessions were full, the peak of memory may grow by 2 % more. At the end no
session is in use, the server has as many descriptors as at the beginning, and SIGTERM ends it. Exits 1 on a failure.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "sample"
PROMPTS = ["Once upon a time", "The fox said", "To make bread, first", "def count(", "The town of", "Once upon a time there was a fox "
           "who lived in a wood", "Once upon a time there was a fox who had a friend"]
MALFORMED = ["{", "[]", '{"prompt":1}', '{"prompt":"a","x":1}', '{"prompt":[[9999999]]}', '{"prompt":"a","n":-1}', "\x00\x01",
             '{"prompt":"a","stop":[' + '"x",' * 200 + '"x"]}', '{"messages":[]}', '{"prompt":"' + "a " * 3000 + '"}']


def make_bundle(moec, folder):
    model = folder / "model"
    shutil.copytree(SAMPLE / "model", model)
    shutil.copy(ROOT / "tests/fixtures/chat/chatml.jinja", model / "chat_template.jinja")
    bundle = folder / "sample.moec"
    subprocess.run([moec, "compile", model, "--policy", "uniform", "--bits", "4", "-q", "-o", bundle], check=True,
                   stdout=subprocess.DEVNULL)
    return bundle


class Soak:
    def __init__(self, moec, bundle, options):
        self.moec, self.bundle, self.options = moec, bundle, options
        self.expected, self.scores, self.lock = {}, {}, threading.Lock()
        self.failures, self.counts, self.left = [], {}, options.requests
        self.server = subprocess.Popen([moec, "serve", bundle, "--port", "0", "--sessions", "4", "--queue", "256", "--request-time", "2s", "--memory",
                                        options.memory], stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", self.server.stdout.readline()).group(1))

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what):
        with self.lock:
            self.failures.append(what)

    def text(self, prompt, n, temperature, seed):
        key = (prompt, n, temperature, seed)
        with self.lock:
            known = self.expected.get(key)
        if known is None:
            done = subprocess.run([self.moec, "run", self.bundle, "-p", prompt, "-n", str(n), "--temp", str(temperature), "--seed",
                                   str(seed)], check=True, capture_output=True, stdin=subprocess.DEVNULL)
            known = done.stdout.decode("utf-8")[:-1]
            with self.lock:
                self.expected[key] = known
        return known

    def post(self, path, body, connection=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def complete(self, chance):
        prompt, temperature, seed = chance.choice(PROMPTS), chance.choice((0, 0.8)), chance.randrange(4)
        n, choices = chance.choice((5, 40)), chance.choice((1, 1, 3))
        body = {"prompt": prompt, "max_tokens": n, "temperature": temperature, "seed": seed, "n": choices,
                "stream": chance.random() < 0.5}
        status, answer = self.post("/v1/completions", body)
        if status == 429:
            return self.count("told to come again")
        if status != 200:
            return self.fail(f"status {status}: {answer[:200]}")
        texts = [""] * choices
        if body["stream"]:
            for event in answer.decode().split("\n\n"):
                if event.startswith("data: {"):
                    for choice in json.loads(event[6:])["choices"]:
                        texts[choice["index"]] += choice["text"]
        else:
            for choice in json.loads(answer)["choices"]:
                texts[choice["index"]] = choice["text"]
        for i, text in enumerate(texts):
            if text != self.text(prompt, n, temperature, seed + i):
                self.fail(f"other words: {body} {i}: {text!r}")
        self.count("texts compared")

    def score(self, chance):
        ids = [[70 + chance.randrange(3), 71, 72, 73, 74 + k] for k in range(2)]
        status, answer = self.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "logprobs": 1, "echo": True,
                                                       "temperature": 0})
        if status == 429:
            return self.count("told to come again")
        if status != 200:
            return self.fail(f"status {status}: {answer[:200]}")
        found = [c["logprobs"]["token_logprobs"] for c in json.loads(answer)["choices"]]
        with self.lock:
            first = self.scores.setdefault(str(ids), found)
        if first != found:
            self.fail(f"other scores: {ids}")
        self.count("scores compared")

    def talk(self, chance):
        status, answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": chance.choice(PROMPTS)}],
                                                            "max_tokens": 20})
        if status not in (200, 429):
            self.fail(f"status {status}: {answer[:200]}")
        self.count("conversations")

    def cut(self, chance):
        """A long request, left at a random moment: before its body is whole, or while it is answered."""
        body = json.dumps({"prompt": chance.choice(PROMPTS), "max_tokens": 800, "temperature": 1, "n": 2,
                           "stream": chance.random() < 0.5}).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        whole = head + body
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(whole[:chance.choice((len(whole), len(whole), chance.randrange(len(whole))))])
            time.sleep(chance.random() * 0.05)
        self.count("cut off")

    def malform(self, chance):
        status, answer = self.post(chance.choice(("/v1/completions", "/v1/chat/completions")),
                                   chance.choice(MALFORMED).encode())
        if status not in (400, 413, 429) or "message" not in json.loads(answer)["error"]:
            self.fail(f"malformed, but {status}: {answer[:200]}")
        self.count("malformed")

    def client(self, seed):
        chance = random.Random(seed)
        while True:
            with self.lock:
                if self.left == 0 or self.failures:
                    return
                self.left -= 1
            what = chance.random()
            try:
                (self.malform if what < 0.1 else self.cut if what < 0.225 else self.score if what < 0.35 else
                 self.talk if what < 0.45 else self.complete)(chance)
            except (OSError, http.client.HTTPException) as error:
                self.fail(f"{type(error).__name__}: {error}")

    def peak(self):
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+)", status).group(1))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.server.pid}/fd"))

    def fill(self):
        """Every session once to its end."""
        ids = [70 + i % 20 for i in range(1000)]
        status, _ = self.post("/v1/completions", {"prompt": [ids[i:] for i in range(8)], "max_tokens": 20, "temperature": 1})
        if status != 200:
            self.fail(f"filling all sessions: status {status}")

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        return int(re.search(rf"^moec_{name} (\d+)$", connection.getresponse().read().decode(), re.M).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--memory", default="96MiB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moec-soak-") as temporary:
        soak = Soak(options.moec, make_bundle(options.moec, pathlib.Path(temporary)), options)
        soak.fill()
        time.sleep(0.5)
        before, descriptors = soak.peak(), soak.descriptors()
        begun = time.time()
        clients = [threading.Thread(target=soak.client, args=(seed,)) for seed in range(options.clients)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        seconds = time.time() - begun
        for _ in range(100):
            if soak.metric("sequences_running") + soak.metric("sequences_waiting") == 0:
                break
            time.sleep(0.1)
        time.sleep(3)  # connections whose request did not come whole are closed by then
        after, left = soak.peak(), soak.descriptors()
        running = soak.metric("sequences_running") + soak.metric("sequences_waiting")
        soak.server.terminate()
        status = soak.server.wait(60)
    keeps = "sanitize" in options.moec or after <= before * 1.02  # a sanitizer takes memory of its own
    good = not soak.failures and keeps and left <= descriptors and running == 0 and status == 0
    for failure in soak.failures[:10]:
        print(f"# {failure}")
    print(f"{'ok' if good else 'FAILED'} {options.requests} requests of {options.clients} clients in {seconds:.1f} s: "
          f"{soak.counts}; peak {before} to {after} kB, descriptors {descriptors} to {left}, {running} running, status {status}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
