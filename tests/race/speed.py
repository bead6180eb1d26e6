#!/usr/bin/env python3
"""Races moec against llama.cpp on the same weights and this machine; prints a table of ratios with goals and verdicts.

    tests/race/speed.py --llama FOLDER [--llama FOLDER] [--model FOLDER] [--folder build/race-speed] [--rows LIST]
                        [--turns N] [-o FILE.md]

Two models: random weights of OLMoE-1B-7B's shape with --layers layers (8: 7 GB of disk, then 12 GB for the files made of
them), and a small real one, --model (qwen2_moe or olmoe in BF16; default: the sample). Both sides get the same values:
4 bits are llama.cpp's Q4_0 (--pure) and INT4 with a scale for each 32 weights, 8 bits its Q8_0 and INT8 likewise, of
dense weights too. Each turn runs all rows, and in each row one side and then the other, in the next turn the other first,
so that what else the machine does affects both; a turn gives one ratio, the table has the median and the range. Of
several builds of llama.cpp each row is raced against the one that is fastest in it before the turns. Ends with 1 when a
goal is missed; interrupted, it prints the turns that it has.

Rows whose names begin with one of --rows (default: all):
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
BITS = {4: "Q4_0", 8: "Q8_0"}
PROMPT = "It was a fine day in the valley, and"
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class Skip(Exception):
    """A row that cannot be raced here, and why."""


class Failed(Exception):
    """A program that did not end well, with its message."""


def run(command, **more):
    """Standard output"""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          text=True, errors="replace", **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def wall_seconds(command):
    begin = time.monotonic()
    run(command)
    return time.monotonic() - begin


# ---- files ----


class Files:
    """What both sides run, made where it is missing."""

    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.llama = pathlib.Path(options.llama[0])
        self.build = pathlib.Path(options.build)
        self.moec = self.build / "moec"

    def checkpoint(self, model):
        if model == "small":
            return pathlib.Path(self.options.model)
        path = self.folder / "olmoe"
        if not (path / "config.json").exists():
            run([self.build / "tools/make_random_checkpoint", "--preset", "olmoe-1b-7b", "--layers", self.options.layers,
                 "--tokenizer", ROOT / "datasets/sample/model/tokenizer.json", path])
        return path

    def make(self, path, *command, after=()):
        """Runs a command that writes a file, whose name stands between `command` and `after`."""
        path = self.folder / path
        if not path.exists():
            print(f"makes {path}", file=sys.stderr)
            new = path.with_name("new-" + path.name)
            run([*command, new, *after])
            new.rename(path)
        return path

    def bf16(self, model):
        return self.make(f"{model}-bf16.gguf", sys.executable, HERE / "gguf_files.py", "write", self.checkpoint(model))

    def gguf(self, model, bits):
        name = f"{model}-{BITS[bits]}.gguf"
        if (self.folder / name).exists():
            return self.folder / name
        return self.make(name, self.llama / "llama-quantize", "--pure", self.bf16(model), after=[BITS[bits]])

    def bundle(self, model, bits):
        return self.make(f"{model}-int{bits}.moec", self.moec, "compile", self.checkpoint(model), "--policy", "uniform",
                         "--bits", bits, "--group", 32, "--dense-bits", bits, "--dense-quantizer", "linear", "-q", "-o")

    def unpacked(self, model, bits):
        """The same bundle with its dense weights as they are used."""
        return self.make(f"{model}-int{bits}-unpacked.moec", self.moec, "strip", self.bundle(model, bits), "--unpack", "-o")

    def text(self, n_bytes):
        """A prompt or a text to evaluate, from the sample's held-out stories."""
        path = self.folder / f"text-{n_bytes}.txt"
        if not path.exists():
            path.write_text((ROOT / "datasets/sample/test.txt").read_text(encoding="utf-8")[:n_bytes], encoding="utf-8")
        return path


def read_into_cache(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def drop_from_cache(path):
    """Pages that nobody maps leave the cache; those of another control group would be read there for nothing."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- a limit of memory ----


class Limit:
    """A control group that bounds memory, page cache included: version 1 or 2, whichever this machine has."""

    def __init__(self, n_bytes):
        name = f"moec-race-{os.getpid()}"
        try:
            if (CGROUPS / "memory/memory.limit_in_bytes").exists():
                self.path = CGROUPS / "memory" / name
                self.path.mkdir()
                (self.path / "memory.limit_in_bytes").write_text(str(n_bytes))
            elif "memory" in (CGROUPS / "cgroup.subtree_control").read_text().split():
                self.path = CGROUPS / name
                self.path.mkdir()
                (self.path / "memory.max").write_text(str(n_bytes))
                if (self.path / "memory.swap.max").exists():
                    (self.path / "memory.swap.max").write_text("0")
            else:
                raise Skip("control groups of version 2 do not delegate memory here")
        except OSError as error:
            raise Skip(f"no control group for memory can be made: {error}") from error

    def join(self):
        """In the child, before it runs its program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


# ---- what each side measures ----


def llama_bench(llama, files, model, bits, n_prompt, n_generate, threads, limit=None):
    more = {"preexec_fn": limit.join} if limit else {}
    # Within a limit weights stay in the file and buffers small; 64 tokens before those that are timed bring pages in.
    # Else they are read into memory, as moec's are: the page cache may lie in worse memory.
    small = ["-b", 64, "-ub", 64, "--repack", 0, "-d", 64] if limit else []
    out = run([llama / "llama-bench", "-m", files.gguf(model, bits), "-p", n_prompt, "-n", n_generate, "-t", threads,
               "-r", 1, "-o", "json", "-lm", "mmap" if limit else "none", *small], **more)
    return json.loads(out)[0]["avg_ts"]


def engine_speed(files, model, bits, n_prompt, n_generate, threads, limit=None, budget=0, arithmetic="canonical"):
    more = {"preexec_fn": limit.join} if limit else {}
    out = json.loads(run([files.build / "tools/engine_speed", files.bundle(model, bits), "--prompt", n_prompt,
                          "--generate", n_generate, "--threads", threads, "--memory", budget, "--arithmetic",
                          arithmetic], **more))
    return (out["prompt"] or out["generate"])[0]


def resident(model, bits, n_prompt, n_generate, threads, arithmetic="canonical"):
    def sides(files):
        files.gguf(model, bits)
        files.bundle(model, bits)
        return (lambda llama: llama_bench(llama, files, model, bits, n_prompt, n_generate, threads),
                lambda: engine_speed(files, model, bits, n_prompt, n_generate, threads, arithmetic=arithmetic))
    return sides


def within(share):
    """The bundle's share as the limit of both; moec is told of it, llama.cpp maps its file."""
    def sides(files):
        bundle, gguf = files.bundle("olmoe", 4), files.gguf("olmoe", 4)
        n_bytes = int(share * bundle.stat().st_size)

        def theirs(llama):
            drop_from_cache(gguf)
            with Limit(n_bytes) as limit:
                return llama_bench(llama, files, "olmoe", 4, 0, 32, 2, limit)

        def ours():
            drop_from_cache(bundle)
            with Limit(n_bytes) as limit:
                return engine_speed(files, "olmoe", 4, 0, 64, 2, limit, n_bytes)
        Limit(n_bytes).__exit__()
        return theirs, ours
    return sides


def evaluation(model, bits, n_window, arithmetic="canonical"):
    """Both read whole windows of 512 tokens from files in the page cache, opening included."""
    def sides(files):
        text = files.text(4000 * n_window if model == "olmoe" else 400000)
        gguf = files.gguf(model, bits) if bits else files.bf16(model)
        ours = files.bundle(model, bits) if bits else files.checkpoint(model)

        def rate(path, command):
            for file in [path] if path.is_file() else path.glob("*.safetensors"):
                read_into_cache(file)
            return n_window * 512 / wall_seconds(command)
        return (lambda llama: rate(gguf, [llama / "llama-perplexity", "-m", gguf, "-f", text, "-c", 512, "-b", 2048, "-t",
                                          2, "--chunks", n_window]),
                lambda: rate(ours, [files.moec, "eval", ours, "--data", text, "--seq-len", 512, "--samples", n_window, "-t",
                                    2, "-q", "--arithmetic", arithmetic]))
    return sides


def start(is_cold, is_unpacked=False):
    """Processes from their beginning to their end, for one token after a short prompt."""
    def sides(files):
        gguf = files.gguf("olmoe", 4)
        bundle = files.unpacked("olmoe", 4) if is_unpacked else files.bundle("olmoe", 4)

        def timed(path, command):
            (drop_from_cache if is_cold else read_into_cache)(path)
            return 1 / wall_seconds(command)
        return (lambda llama: timed(gguf, [llama / "llama-completion", "-m", gguf, "-p", PROMPT, "-n", 1, "-t", 2, "-c",
                                           512, "-no-cnv", "--no-warmup", "--no-repack"]),
                lambda: timed(bundle, [files.moec, "run", bundle, "-p", PROMPT, "-n", 1, "-t", 2, "--ctx", 512]))
    return sides


# name: (what, unit, goal, sides)
ROWS = {
    "decode-4bit-1": ("decoding, 4 bits, 1 thread", "tokens/s", 1.3, resident("olmoe", 4, 0, 48, 1)),
    "int8-decode-4bit-1": ("int8 arithmetic, decoding, 4 bits, 1 thread", "tokens/s", 1.3,
                           resident("olmoe", 4, 0, 48, 1, "int8")),
    "decode-4bit-2": ("decoding, 4 bits, 2 threads", "tokens/s", 1.3, resident("olmoe", 4, 0, 64, 2)),
    "int8-decode-4bit-2": ("int8 arithmetic, decoding, 4 bits, 2 threads", "tokens/s", 1.3,
                           resident("olmoe", 4, 0, 64, 2, "int8")),
    "decode-8bit-1": ("decoding, 8 bits, 1 thread", "tokens/s", 1.3, resident("olmoe", 8, 0, 32, 1)),
    "int8-decode-8bit-1": ("int8 arithmetic, decoding, 8 bits, 1 thread", "tokens/s", 1.3,
                           resident("olmoe", 8, 0, 32, 1, "int8")),
    "decode-8bit-2": ("decoding, 8 bits, 2 threads", "tokens/s", 1.3, resident("olmoe", 8, 0, 48, 2)),
    "int8-decode-8bit-2": ("int8 arithmetic, decoding, 8 bits, 2 threads", "tokens/s", 1.3,
                           resident("olmoe", 8, 0, 48, 2, "int8")),
    "prefill-4bit": ("prompt of 512, 4 bits, 2 threads", "tokens/s", 1.2, resident("olmoe", 4, 512, 0, 2)),
    "int8-prefill-4bit": ("int8 arithmetic, prompt of 512, 4 bits, 2 threads", "tokens/s", 2,
                          resident("olmoe", 4, 512, 0, 2, "int8")),
    "prefill-8bit": ("prompt of 512, 8 bits, 2 threads", "tokens/s", 1.2, resident("olmoe", 8, 512, 0, 2)),
    "int8-prefill-8bit": ("int8 arithmetic, prompt of 512, 8 bits, 2 threads", "tokens/s", 2,
                          resident("olmoe", 8, 512, 0, 2, "int8")),
    "evaluation-8bit": ("perplexity, 8 bits, 2 threads", "tokens/s", 2, evaluation("olmoe", 8, 8)),
    "int8-evaluation-8bit": ("int8 arithmetic, perplexity, 8 bits, 2 threads", "tokens/s", 2,
                             evaluation("olmoe", 8, 8, "int8")),
    "memory-25": ("decoding in 25 % of the bundle, 4 bits", "tokens/s", 6, within(0.25)),
    "memory-50": ("decoding in 50 % of the bundle, 4 bits", "tokens/s", 4, within(0.5)),
    "start-warm": ("first token, file in page cache", "starts/s", 1, start(False)),
    "start-unpacked": ("first token, file in page cache, `moec strip --unpack`", "starts/s", 1, start(False, True)),
    "start-cold": ("first token, file on disk", "starts/s", 1, start(True)),
    "small-decode-1": ("small model, decoding, 4 bits, 1 thread", "tokens/s", 1.3, resident("small", 4, 0, 256, 1)),
    "small-decode-2": ("small model, decoding, 4 bits, 2 threads", "tokens/s", 1.3, resident("small", 4, 0, 256, 2)),
    "small-prefill": ("small model, prompt of 512, 4 bits, 2 threads", "tokens/s", 1.2, resident("small", 4, 512, 0, 2)),
    "small-evaluation": ("small model, perplexity, BF16, 2 threads", "tokens/s", 2, evaluation("small", 0, 24)),
}


# ---- the race ----


class Row:
    """One row: both sides' runs, and llama.cpp's build that is fastest in it."""

    def __init__(self, name, files, llamas):
        self.name = name
        self.theirs, self.ours = ROWS[name][3](files)
        self.llama, self.results = llamas[0], []
        if len(llamas) > 1:
            self.llama = max(llamas, key=self.try_build)
            print(f"{name}: against {self.llama}", file=sys.stderr)
        elif self.wants_cache():
            self.theirs(self.llama)
        if self.wants_cache():
            self.ours()

    def wants_cache(self):
        """Whether both sides run once before the turns, so that their files are in the page cache."""
        return re.search("decode|prefill", self.name)

    def try_build(self, llama):
        try:
            if self.wants_cache():
                self.theirs(llama)
            return self.theirs(llama)
        except Failed as why:
            print(f"{self.name}: {why}", file=sys.stderr)
            return 0

    def turn(self, ours_first, known):
        """`known`: llama.cpp's figures of this turn, by row: a row of int8 arithmetic races the same run of llama.cpp."""
        same = self.name.removeprefix("int8-")
        moec = self.ours() if ours_first else 0
        if same not in known:
            known[same] = self.theirs(self.llama)
        self.results.append((known[same], moec if ours_first else self.ours()))
        print("{}: llama.cpp {:.4g}, moec {:.4g}".format(self.name, *self.results[-1]), file=sys.stderr)

    def line(self):
        """Of the table, and whether the goal is reached."""
        what, unit, goal, _ = ROWS[self.name]
        ratios = [moec / llama for llama, moec in self.results]
        ratio = statistics.median(ratios)
        verdict = "reached" if ratio >= goal else "ahead" if ratio > 1 else "behind"
        llama, moec = (statistics.median(side) for side in zip(*self.results))
        return (f"| {what} ({unit}) | {llama:.4g} | {moec:.4g} | {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} | "
                f"{goal} | {verdict} | {len(ratios)} |"), ratio >= goal


def race(rows, turns):
    """Whether all goals are reached, and the table's lines."""
    try:
        for turn in range(turns):
            known = {}
            print(f"turn {turn + 1} of {turns}", file=sys.stderr)
            for row in rows:
                row.turn(turn % 2 == 1, known)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    lines = [row.line() for row in rows if row.results]
    return all(reached for _, reached in lines), [line for line, _ in lines]


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    cpu = re.search(r"model name\s*: (.*)", text)
    family, model = (re.search(rf"{key}\s*: (\d+)", text) for key in ("cpu family", "model"))
    sets = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if re.search(rf"\b{name}\b", text)]
    kib = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")).group(1))
    number = f" (family {family.group(1)}, model {model.group(1)})" if family and model else ""
    return (f"{cpu.group(1) if cpu else os.uname().machine}{number}, {len(os.sched_getaffinity(0))} cores used, "
            f"{', '.join(sets)}, {kib / 1048576:.0f} GiB of memory")


def report(options, lines):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    peer = subprocess.run([pathlib.Path(options.llama[0]) / "llama-bench", "-m", "/nowhere", "--version"], check=False,
                          capture_output=True, text=True)
    version = re.search(r"version: (.*)", peer.stdout + peer.stderr)
    head = [f"{datetime.date.today():%d %B %Y}; {machine()}.",
            f"moec {commit}; llama.cpp {version.group(1) if version else options.peer}. {options.layers} layers of "
            f"OLMoE-1B-7B's shape; the small model is `{pathlib.Path(options.model).resolve().name}`.", "",
            "| what | llama.cpp | moec | ratio | range | goal | verdict | turns |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    return "\n".join(head + lines) + "\n"


def main():
    rows = "\n".join(f"    {name:18} {row[0]}, goal {row[2]}" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(description=__doc__ + rows, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", required=True, action="append",
                        help="folder of llama-bench, -completion, -perplexity and -quantize; may be repeated for other builds")
    parser.add_argument("--peer", default="of llama-cpp-python's source", help="its version, for the report")
    parser.add_argument("--build", default=os.environ.get("MOEC_BUILD", ROOT / "build"))
    parser.add_argument("--model", default=ROOT / "datasets/sample/model")
    parser.add_argument("--folder", default=ROOT / "build/race-speed")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", default="")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    parser.add_argument("-o", "--output", help="also write the table here")
    options = parser.parse_args()
    wanted = [name for name in ROWS if any(name.startswith(part) for part in options.rows.split(","))]
    if not wanted:
        sys.exit(f"no row begins with '{options.rows}', there are {', '.join(ROWS)}")
    llamas = [pathlib.Path(folder) for folder in options.llama]
    for program in ("llama-bench", "llama-completion", "llama-perplexity", "llama-quantize"):
        for folder in llamas:
            if not shutil.which(folder / program):
                sys.exit(f"'{folder}' has no {program}: tests/race/peer.sh builds it")
    files = Files(options)
    rows, skipped = [], []
    for name in wanted:
        try:
            if options.prepare:
                ROWS[name][3](files)
            else:
                rows.append(Row(name, files, llamas))
        except Skip as why:
            skipped.append(f"| {ROWS[name][0]} | | | | | {ROWS[name][2]} | skipped: {why} | |")
    if options.prepare:
        return 0
    is_reached, lines = race(rows, options.turns)
    text = report(options, skipped + lines)
    print(text, end="")
    if options.output:
        pathlib.Path(options.output).write_text(text, encoding="utf-8")
    return 0 if is_reached else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(str(failure))
