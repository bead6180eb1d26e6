"""Tokens a second of a server that runs, for several numbers of requests at once. By the standard library alone.

    moec serve model.moec --memory 8GiB --sessions 8 --ctx 512 --port 8091 &
    python3 tests/race/serve_sessions.py 8091 [1,4,8 [TOKENS [TURNS]]]

Each request continues another text by TOKENS tokens (48), drawn with a temperature of 1. Requests of a number begin
together; the time ends with the last of them, and so has their prompts of eight words in it. Numbers take turns
(TURNS, 3). Prints each measurement, then the median of each number and its ratio to the first.
"""

import json
import statistics
import sys
import threading
import time
import urllib.request

WORDS = "The old miller had three sons and a cat who knew the way over the hills to the sea".split()


def request(port, index, tokens, counts):
    prompt = " ".join(WORDS[index % 8 : index % 8 + 8])
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": index}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        counts.append(json.load(answer)["usage"]["completion_tokens"])


def measure(port, n, tokens):
    counts = []
    threads = [threading.Thread(target=request, args=(port, i, tokens, counts)) for i in range(n)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < n:
        sys.exit(f"{n - len(counts)} of {n} requests failed")
    return sum(counts) / (time.monotonic() - start)


def main():
    port = int(sys.argv[1])
    numbers = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "1,4,8").split(",")]
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 48
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    rates = {n: [] for n in numbers}
    for turn in range(turns):
        for n in numbers:
            rates[n].append(measure(port, n, tokens))
            print(f"turn {turn + 1}, {n} at once: {rates[n][-1]:.1f} tokens a second", flush=True)
    first = statistics.median(rates[numbers[0]])
    for n in numbers:
        median = statistics.median(rates[n])
        print(f"{n} at once: median {median:.1f}, {median / first:.2f} times as many")


if __name__ == "__main__":
    main()
