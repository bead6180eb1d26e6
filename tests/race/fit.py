#!/usr/bin/env python3
"""Races moec fit with moec compile, cell by cell: storage of 550, 100 and 50 MB/s, memory that holds an eighth, a
quarter and half of the experts of what moec compile writes. In each cell the same memory of moec-run is given to both.

  S=datasets/sample
  tests/race/fit.py --model $S/model --data $S/calibration.txt --test $S/test.txt
  tests/race/fit.py ... --hand          # also the twelve settings of HAND, where their loss on the test text is kept
  tests/race/fit.py ... --foretold      # fits alone: nothing is timed in cells

A line is a cell: foretold and measured time of a generated token, mean over the same teacher-forced tokens, median of
the turns; that of compile's bundle in its best mode that changes no text; the time with every expert in memory. The
last lines sum up. Measuring needs an idle machine. What was made stays in the folder of --work, and is not made again:
so cells may be measured in parts, by --shares and --rates."""
import argparse
import json
import os
import statistics
import subprocess
import sys

RATES = ["550MB/s,80us", "100MB/s,200us", "50MB/s,200us"]
SHARES = [0.125, 0.25, 0.5]
# What compile's bundle is raced with: eviction and prediction change no text.
LOSSLESS = [("hobbit", "gate"), ("hobbit", "none"), ("lru", "gate"), ("lru", "none"), ("lfu", "gate")]
# Settings that one would choose by hand, those of the papers among them: the share of the loss that bits spend, options
# of moec compile, and those of moec bench. SLOTS is the number of experts of a layer that memory holds.
HAND = [
    ("compile, lru", 1, [], ["--evict", "lru", "--predict", "none"]),
    ("compile, lru and gate", 1, [], ["--evict", "lru", "--predict", "gate"]),
    ("EdgeMoE", 1, [], ["--modes", "edgemoe"]),
    ("Fate's cache", 1, [], ["--modes", "eap"]),
    ("MoE-Offloading", 1, [], ["--modes", "moe-offloading"]),
    ("MoE-Infinity", 1, [], ["--modes", "moe-infinity"]),
    ("HOBBIT", 0.5, ["--copies", "2"], ["--precision", "hobbit:0.6:0.9", "--low-slots", "25%", "--slots", "SLOTS"]),
    ("cache-prior 0.1", 0.5, [], ["--route", "cache-prior:0.1", "--slots", "SLOTS"]),
    ("cache-prior 0.2", 0.5, [], ["--route", "cache-prior:0.2", "--slots", "SLOTS"]),
    ("max-rank", 0.5, [], ["--route", "max-rank:6", "--slots", "SLOTS"]),
    ("skip 0.1", 0.5, [], ["--route", "top-k:skip:0.1", "--slots", "SLOTS"]),
    ("prior and skip", 0.5, [], ["--route", "cache-prior:0.1:skip:0.1", "--slots", "SLOTS"]),
]


class Race:
    def __init__(self, options):
        self.options = options
        self.losses = {}  # by bundle and options: storage changes none
        os.makedirs(options.work, exist_ok=True)

    def run(self, *words):
        command = [self.options.moec, *words, *([] if words[0] == "doctor" else ["-q"])]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def path(self, name):
        return os.path.join(self.options.work, name)

    def samples(self):
        return ["--samples", str(self.options.samples), "--seq-len", str(self.options.seq_len)]

    def compiled(self, share, extra):
        """A bundle whose bits spend a share of the loss."""
        path = self.path("compile-" + "-".join([f"{share:g}", *[word.strip("-") for word in extra]]) + ".moec")
        if not os.path.exists(path):
            self.run("compile", self.options.model, "--data", self.options.data, "--max-loss",
                     f"{100 * self.options.max_loss * share:g}%", *self.samples(), *extra, "-o", path)
        return path

    def kept(self, bundle, memory):
        """The share of a bundle's experts that moec-run keeps in a memory; below 0: it refuses."""
        said = json.loads(self.run("doctor", bundle, "--ctx", str(self.options.ctx), "--memory", str(memory), "--json"))
        plan = said["sizes"][0]["plans"][0]["moec-run"]
        return plan["experts_kept"] if plan["fits"] else -1

    def memory(self, bundle, share):
        """The least memory, in KiB, in which moec-run keeps a share of its experts."""
        low, high = 1, 1 << 22
        while low < high:
            middle = (low + high) // 2
            if self.kept(bundle, f"{middle}KiB") >= share:
                high = middle
            else:
                low = middle + 1
        return f"{low}KiB"

    def device(self, bundle, rate):
        """A description of this machine with such storage, measured once for all cells. With --foretold, what threads
        wait longer when other work takes the processors is left out."""
        path, whole = self.path(f"device-{rate.replace('/', '')}.json"), self.path("device.json")
        if not os.path.exists(whole):
            self.run("device", bundle, "--emulate-storage", RATES[0], "-o", whole)
        with open(whole) as file:
            said = json.load(file)
        bandwidth, latency = rate.split(",")
        said["storage"]["bytes_per_second"] = int(bandwidth.removesuffix("MB/s")) * 1000000
        said["storage"]["latency_ns"] = int(latency.removesuffix("us")) * 1000
        if self.options.foretold:
            said["compute"]["waits"] = []
        with open(path, "w") as file:
            json.dump(said, file)
        return path

    def fit(self, plain, rate, memory):
        path = self.path(f"fit-{memory}-{rate.replace('/', '')}.moec")
        if not os.path.exists(path + ".json"):
            said = self.run("fit", self.options.model, "--data", self.options.data, "--max-loss",
                            f"{100 * self.options.max_loss:g}%", *self.samples(), "--ctx", str(self.options.ctx),
                            "--memory", memory, "--device-file", self.device(plain, rate), "--json", "--force", "-o",
                            path)
            with open(path + ".json", "w") as file:
                file.write(said)
        with open(path + ".json") as file:
            return path, json.load(file)

    def bench(self, bundle, share, rate, extra):
        """Mean time of a token and bytes read for it, by row."""
        said = json.loads(self.run("bench", bundle, *([] if "--modes" in extra else ["--modes", "cache"]), "--memory",
                                   f"{100 * share:.2f}%", "--emulate-storage", rate, "--data", self.options.test,
                                   "--samples", str(self.options.rows), "--prompt-tokens", "64", "--tokens", "64",
                                   "--json", *extra))
        return [(row["tpot_ms_mean"], row["bytes_per_token"]) for row in said["rows"] if row["error"] is None]

    def best(self, rows):
        """The row whose median over the turns is the least: turns of rows."""
        medians = [(statistics.median(turn[i][0] for turn in rows), rows[0][i][1]) for i in range(len(rows[0]))]
        return min(medians)

    def measure(self, jobs, rate):
        """Turns over all jobs (bundle, share, list of options): the best row of each job."""
        turns = [[] for _ in jobs]
        for _ in range(self.options.turns):
            for at, (bundle, share, choices) in enumerate(jobs):
                turns[at].append([row for extra in choices for row in self.bench(bundle, share, rate, extra)])
        return [self.best(rows) for rows in turns]

    def loss(self, bundle, extra):
        key = (bundle, *extra)
        if key not in self.losses:
            self.losses[key] = self.evaluate(bundle, extra)
        return self.losses[key]

    def evaluate(self, bundle, extra):
        said = json.loads(self.run("eval", bundle, "--reference", self.options.model, "--data", self.options.test,
                                   *self.samples(), "--json", *extra))
        return said["loss"]["loss"] if isinstance(said["loss"], dict) else said["loss"]

    def hand(self, rate, memory, n_expert):
        """The fastest of HAND that keep the promise on the test text, by turns of their own."""
        found = []
        for name, share, extra, words in HAND:
            bundle = self.compiled(share, extra)
            kept = self.kept(bundle, memory)
            if kept <= 0:
                continue
            slots = str(max(self.options.top_k, int(kept * n_expert)))
            words = [slots if word == "SLOTS" else word for word in words]
            if "--modes" not in words and ("--route" in words or "--precision" in words):
                if self.loss(bundle, words) > self.options.max_loss:
                    continue
            found.append((*self.measure([(bundle, kept, [words])], rate)[0], name))
        return min(found) if found else (float("nan"), float("nan"), "none")


def cell(race, plain, share, memory, rate):
    """One cell: what was foretold, ours and compile's (time of a token, bytes read), and the line that is printed."""
    nothing = (float("nan"), float("nan"))
    path, said = race.fit(plain, rate, memory)
    ours, theirs, resident = nothing, nothing, nothing
    if not race.options.foretold:
        lossless = [["--evict", evict, "--predict", predict] for evict, predict in LOSSLESS]
        ours, theirs, resident = race.measure([(path, race.kept(path, memory), [[]]),
                                               (plain, race.kept(plain, memory), lossless), (path, 1, [[]])], rate)
    winner = said["winner"]
    read = said["read_bytes_per_token"] if race.options.foretold else ours[1]
    words = [f"{100 * share:4.1f}%  {rate:15}  {said['token_ms']:8.3f}", f"{ours[0]:8.3f} {read / 1e3:8.1f}",
             f"{said['compiled_token_ms']:17.3f} {theirs[0]:9.3f} {theirs[1] / 1e3:8.1f}",
             f"{said['resident_token_ms']:9.3f} {resident[0]:9.3f}",
             f"plan {winner['plan'] + 1} {winner['route'] or 'none'}"]
    return said["token_ms"], ours[0], theirs[0], "  ".join(words)


def sum_up(cells):
    """How far foretold times are off, and how much longer compile's bundle takes."""
    errors = [foretold / measured - 1 for foretold, measured, _ in cells]
    print(f"foretold: {100 * statistics.median(map(abs, errors)):.1f} % off in the median, "
          f"from {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %")
    print("compile's time beside the fit's: " + ", ".join(f"{theirs / ours:.2f}" for _, ours, theirs in cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moec", default="build/moec")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--work", default="build/race-fit")
    parser.add_argument("--max-loss", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--ctx", type=int, default=256)
    parser.add_argument("--rows", type=int, default=12, help="samples of moec bench")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rates", default=";".join(RATES))
    parser.add_argument("--shares", default=";".join(map(str, SHARES)))
    parser.add_argument("--hand", action="store_true")
    parser.add_argument("--foretold", action="store_true")
    race = Race(parser.parse_args())
    options = race.options
    plain = race.compiled(1, [])
    dimensions = json.loads(race.run("doctor", plain, "--json"))["dimensions"]
    options.top_k = dimensions["top_k"]
    print("share  storage          foretold  measured  KB read   compile: foretold  measured  KB read   resident: "
          "foretold  measured  settings")
    cells = []
    for share in map(float, options.shares.split(";")):
        memory = race.memory(plain, share)
        for rate in options.rates.split(";"):
            foretold, ours, theirs, line = cell(race, plain, share, memory, rate)
            print(line, flush=True)
            cells.append((foretold, ours, theirs))
            if options.hand:
                fastest = race.hand(rate, memory, dimensions["experts"])
                print(f"       by hand: {fastest[0]:.3f} ms, {fastest[1] / 1e3:.1f} KB ({fastest[2]})", flush=True)
    if not options.foretold:
        sum_up(cells)
    return 0


if __name__ == "__main__":
    sys.exit(main())
