"""Tokens that a server generates a second, for several requests at once. By the standard library alone.

    moec serve model.moec --memory 8GiB --sessions 8 --ctx 512 --port 8091 &
    llama/bin/llama-server -m model.gguf -c 4096 -np 8 -t 2 --port 8092 &
    python3 tests/race/serve_sessions.py 8091,8092 [1,4,8 [TOKENS [TURNS]]]

A server of a list stands beside the first: they take turns with the same requests. Each request continues another text, drawn with a temperature of 1.
A measurement is rounds of requests that begin together: of one token each, so that the server holds their prompts, of
8 tokens, and of 8 + TOKENS (48). What the last takes longer than the one before is the time of generating alone. Numbers
take turns (TURNS, 3). Prints each measurement, then the median of each server and number, its ratio to that of one
request, and the median of the turns' ratios to the first server.
"""

import json
import statistics
import sys
import threading
import time
import urllib.request

WORDS = "The old miller had three sons and a cat who knew the way over the hills to the sea".split()
FEW = 8


def request(port, index, tokens, counts):
    prompt = " ".join(WORDS[index % 8 : index % 8 + 8])
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": index}
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked) as answer:
        counts.append(json.load(answer)["usage"]["completion_tokens"])


def round_of(port, n, tokens):
    counts = []
    threads = [threading.Thread(target=request, args=(port, i, tokens, counts)) for i in range(n)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(counts) < n:
        sys.exit(f"{n - len(counts)} of {n} requests failed")
    return sum(counts), time.monotonic() - start


def measure(port, n, tokens):
    round_of(port, n, 1)
    few, short = round_of(port, n, FEW)
    many, long = round_of(port, n, FEW + tokens)
    return (many - few) / (long - short)


def table(ports, numbers, rates):
    for port in ports:
        one = statistics.median(rates[port, numbers[0]])
        for n in numbers:
            median = statistics.median(rates[port, n])
            line = f"{port}, {n} at once: median {median:.1f}, {median / one:.2f} times as many"
            if port != ports[0]:
                beside = statistics.median(a / b for a, b in zip(rates[ports[0], n], rates[port, n]))
                line += f"; {ports[0]} is {beside:.2f} times as fast"
            print(line)


def main():
    ports = [int(port) for port in sys.argv[1].split(",")]
    numbers = [int(n) for n in (sys.argv[2] if len(sys.argv) > 2 else "1,4,8").split(",")]
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 48
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    rates = {(port, n): [] for port in ports for n in numbers}
    for turn in range(turns):
        for n in numbers:
            for port in ports:
                rates[port, n].append(measure(port, n, tokens))
                print(f"turn {turn + 1}, {port}, {n} at once: {rates[port, n][-1]:.1f} tokens a second", flush=True)
    table(ports, numbers, rates)


if __name__ == "__main__":
    main()
