#!/usr/bin/env python3
"""Compiles some layers of a large model's shape, and sets what that takes beside its forecast and beside llama.cpp.

    tests/race/scale.py --shape olmoe|qwen3|gpt-oss --data TEXT --llama FOLDER --python PYTHON
                        [--layers N] [--vocab N] [--samples N] [--seq-len N] [--tokens N] [--threads N] [-o FILE.md]

Weights are random, so no download is needed, and costs are those of the real model. One `moec compile` by policy hull
gives the phases' processor seconds, their forecast, peak memory, bytes read and journal. llama.cpp then gets the same
values as a GGUF file: llama-imatrix over --tokens tokens, llama-quantize to IQ3_S with that importance matrix. What
each phase took of its forecast is carried over to the default of 896 windows, and to the whole model.

How many plans a search measures, and how many tests a certificate takes, depends on data, and random weights say nothing
about real ones. So the forecast of searching and certifying is shown for as many plans as were measured, and figures that
are carried over have the forecast's own counts.

Each step is kept in --work, and a second start goes on from there; a compile that was interrupted begins anew, for its
processor time would be lost. Checkpoint, journal and GGUF files are removed once they are not needed. Ends with 1 when a
goal is missed: forecasts within 25 %, memory within --work-memory and the largest layer, processor time at most 5 times
llama.cpp's. Without --llama only moec's part is run.
"""

import argparse
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
TOKENIZER = ROOT / "datasets/sample/model/tokenizer.json"
# Name, preset of make_random_checkpoint, layers of the model and of the slice, vocabulary.
SHAPES = {
    "olmoe": ("OLMoE-1B-7B", "olmoe-1b-7b", 16, 4, 50304),
    "qwen3": ("Qwen3-30B-A3B", "qwen3-30b-a3b", 48, 2, 151936),
    "gpt-oss": ("gpt-oss-20b", "gpt-oss-20b", 24, 2, 201088),
}
SMALL = {"--hidden": 256, "--heads": 4, "--kv-heads": 4, "--experts": 8, "--top-k": 2, "--ff": 256, "--positions": 1024}
SMALL_VOCABULARY = 4096
LEAST_VOCABULARY = 2049  # of the sample's tokenizer
LEAST_SAMPLES = 32       # of moec compile
CONTEXT = 512            # tokens, of llama-imatrix
TEXT_BYTES = 4           # of a token, at most, so that a text is long enough
FORECAST_TOKENS = 256    # of a window, in forecasts from config.json
FEW_WINDOWS = 64         # that plans are compared on (compiler/compile/compile_run.h)
FORECAST_GOAL = 0.25
PEER_GOAL = 5.0
SEARCH = "searching, ordering plans"
# Phases as the table has them: their names in the forecast and in what was taken.
PHASES = {
    "start": ([], ["start"]),
    "routing, original": (["routing, original"], ["routing", "original"]),
    "weighing bitwidths": (["weighing bitwidths"], ["weighing bitwidths"]),
    "fitting experts": (["fitting experts"], ["fitting experts"]),
    SEARCH: (["searching", "ordering plans"], ["searching", "ordering plans"]),
    "certifying": (["certifying"], ["certifying"]),
    "packing": (["packing"], ["packing"]),
}


class Failed(Exception):
    """A program that did not end well, with its message."""


def call(command, log=None):
    """Standard output, seconds, processor seconds and peak bytes; standard error goes into a file or is kept."""
    command = [str(word) for word in command]
    begin = time.monotonic()
    with open(log or os.devnull, "w", encoding="utf-8") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace") as process:
            out = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        said = pathlib.Path(log).read_text(encoding="utf-8", errors="replace")[-2000:] if log else out[-2000:]
        raise Failed(f"{shlex.join(command)} ended with {process.returncode}:\n{said}")
    return {"out": out, "seconds": time.monotonic() - begin, "processor_seconds": used.ru_utime + used.ru_stime,
            "peak_bytes": used.ru_maxrss * 1024}


def file_bytes(path):
    path = pathlib.Path(path)
    return sum(each.stat().st_size for each in path.iterdir()) if path.is_dir() else path.stat().st_size


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ---- steps ----


class Race:
    """What is made in the folder of one shape, and the results of steps."""

    def __init__(self, options):
        self.options = options
        self.name, self.preset, self.whole_layers, default, vocabulary = SHAPES[options.shape]
        self.layers = options.layers or default
        self.whole_vocabulary = SMALL_VOCABULARY if options.small else vocabulary
        self.vocabulary = options.vocab or self.whole_vocabulary
        self.moec = pathlib.Path(options.build) / "moec"
        self.folder = pathlib.Path(options.work) / "-".join(
            [options.shape, str(self.layers), str(self.vocabulary)] + ["small"] * options.small)
        self.results_path = self.folder / "results.json"
        self.results, self.kept = {}, []

    def path(self, name):
        return self.folder / name

    def begin(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.results_path.exists():
            self.results = json.loads(self.results_path.read_text(encoding="utf-8"))

    def step(self, name, key, make):
        """The result of a step: that of an earlier start with the same key, else what `make` returns."""
        before = self.results.get(name)
        if before and before["key"] == key:
            self.kept.append(name)
            return before["result"]
        print(f"{name} ...", file=sys.stderr, flush=True)
        result = make()
        self.results[name] = {"key": key, "result": result}
        new = self.path("results.new")
        new.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        new.rename(self.results_path)
        return result

    def has(self, name, key):
        return self.results.get(name, {}).get("key") == key

    def make_checkpoint(self, folder, layers, vocabulary, *more):
        small = [word for pair in SMALL.items() for word in pair] if self.options.small else []
        call([pathlib.Path(self.options.build) / "tools/make_random_checkpoint", "--preset", self.preset, *small,
              "--layers", layers, "--vocab", vocabulary, "--tokenizer", TOKENIZER, *more, folder])

    def checkpoint(self):
        """Made whole or not at all."""
        path = self.path("checkpoint")
        if not path.exists():
            new = self.path("checkpoint.new")
            remove(new)
            self.make_checkpoint(new, self.layers, self.vocabulary)
            new.rename(path)
        return path

    def doctor(self, layers, vocabulary):
        """The forecast of a default compile, which needs no weights."""
        folder = self.path("doctor")
        self.make_checkpoint(folder, layers, vocabulary, "--no-weights")
        said = json.loads(call([self.moec, "doctor", folder, "--json", "-t", self.options.threads],
                               self.path("doctor.log"))["out"])
        remove(folder)
        return said

    def compile(self):
        bundle, journal = self.path("slice.moec"), self.path("journal")
        for path in self.folder.glob("slice.moec*"):
            remove(path)
        remove(journal)
        # --time-limit is what makes a forecast part of the result; so much leaves nothing out.
        ran = call([self.moec, "compile", self.checkpoint(), "--data", self.options.data, "--max-loss",
                    self.options.max_loss, "--anyway", "--samples", self.options.samples, "--seq-len",
                    self.options.seq_len, "-t", self.options.threads, "--work-memory", self.options.work_memory,
                    "--time-limit", "100000h", "--journal", journal, "--json", "--verbose", "-o", bundle],
                   self.path("compile.log"))
        said = json.loads(ran.pop("out"))
        for large in ("assignment", "dense"):
            said.pop(large)
        result = dict(ran, said=said, journal_bytes=file_bytes(journal), bundle_bytes=file_bytes(bundle),
                      checkpoint_bytes=file_bytes(self.checkpoint()))
        remove(journal)
        remove(bundle)
        return result

    def gguf(self):
        """Of the same values; the checkpoint goes then."""
        path, new = self.path("slice.gguf"), self.path("gguf.new")
        if not path.exists():
            call([self.options.python, HERE / "gguf_files.py", "write", self.checkpoint(), new], self.path("gguf.log"))
            new.rename(path)
        if not self.options.keep:
            remove(self.path("checkpoint"))
        return path

    def imatrix(self):
        n_chunk = math.ceil(self.options.tokens / CONTEXT)
        log, new = self.path("imatrix.log"), self.path("imatrix.new.gguf")
        ran = call([self.options.llama / "llama-imatrix", "-m", self.gguf(), "-f", self.options.data, "-o", new,
                    "-c", CONTEXT, "--chunks", n_chunk, "-t", self.options.threads], log)
        ran.pop("out")
        said = re.search(r"computing over (\d+) chunks", log.read_text(encoding="utf-8", errors="replace"))
        if not said or int(said.group(1)) < n_chunk:
            raise Failed(f"'{self.options.data}' is too short for {self.options.tokens} tokens: llama-imatrix took "
                         f"{said.group(1) if said else 'no'} contexts of {CONTEXT} (see '{log}')")
        new.rename(self.path("imatrix.gguf"))
        return dict(ran, tokens=n_chunk * CONTEXT)

    def quantize(self):
        gguf, out = self.gguf(), self.path("quantized.gguf")
        again = ["--allow-requantize"] if self.options.shape == "gpt-oss" else []
        ran = call([self.options.llama / "llama-quantize", *again, "--imatrix", self.path("imatrix.gguf"), gguf, out,
                    "IQ3_S", self.options.threads], self.path("quantize.log"))
        ran.pop("out")
        result = dict(ran, gguf_bytes=file_bytes(gguf), bytes=file_bytes(out))
        remove(out)
        return result

    def run(self):
        options = self.options
        digest = hashlib.sha256(self.moec.read_bytes()).hexdigest()[:16]
        text_bytes = file_bytes(options.data)
        common = [digest, options.threads]
        compiled = [*common, options.samples, options.seq_len, options.max_loss, options.work_memory, text_bytes]
        slice_said = self.step("forecast of the slice", common, lambda: self.doctor(self.layers, self.vocabulary))
        whole_said = self.step("forecast of the model", common,
                               lambda: self.doctor(self.whole_layers, self.whole_vocabulary))
        if not self.has("moec compile", compiled):
            self.say_time(slice_said)
        results = {"slice": slice_said, "whole": whole_said,
                   "compile": self.step("moec compile", compiled, self.compile)}
        if options.llama:
            peer = [str(options.llama), options.threads, options.tokens, text_bytes]
            if self.has("llama-imatrix", peer) and not self.path("imatrix.gguf").exists() and \
                    not self.has("llama-quantize", peer):
                self.results.pop("llama-imatrix")
            results["imatrix"] = self.step("llama-imatrix", peer, self.imatrix)
            results["quantize"] = self.step("llama-quantize", peer, self.quantize)
        for name in ("checkpoint", "slice.gguf", "imatrix.gguf") if not options.keep else ():
            remove(self.path(name))
        return results

    # ---- before long work ----

    def say_time(self, said):
        """How long the compile may take: windows go with --samples and --seq-len, fits stay."""
        forecast = said["compile"]["forecast"]["phases"]
        window = forecast["routing, original"]["core_seconds"] / forecast["routing, original"]["windows"]
        n_window = self.options.samples
        certificate = n_window // 2
        select = (n_window - certificate) // 3
        search = n_window - certificate - select
        few, few_select = min(search, FEW_WINDOWS), min(select, FEW_WINDOWS)
        counted = {"routing, original": search + select, "fitting experts": min(search, 256),
                   "weighing bitwidths": 4 * few + forecast["weighing bitwidths"]["windows"] - 4 * FEW_WINDOWS,
                   "searching": 7 * few + 2 * few_select, "ordering plans": few, "certifying": 4 * min(certificate, 256)}
        weights = forecast["fitting experts"]["core_seconds"] - window * forecast["fitting experts"]["windows"]
        tokens = self.options.seq_len / FORECAST_TOKENS
        seconds = weights + tokens * sum(
            n * forecast[name]["core_seconds"] / max(forecast[name]["windows"], 1) for name, n in counted.items()
            if name != "fitting experts") + tokens * window * counted["fitting experts"]
        print(f"moec compile is going to take about {seconds:.0f} processor seconds, {seconds / 3600:.2f} core-hours",
              file=sys.stderr, flush=True)

    def check(self):
        options = self.options
        if options.samples < LEAST_SAMPLES:
            sys.exit(f"--samples is {options.samples}, expected at least {LEAST_SAMPLES}")
        if not 1 <= self.layers <= self.whole_layers:
            sys.exit(f"--layers is {self.layers}, expected 1 to {self.whole_layers}")
        if self.vocabulary < LEAST_VOCABULARY:
            sys.exit(f"--vocab is {self.vocabulary}, expected at least {LEAST_VOCABULARY}")
        for tool in (self.moec, pathlib.Path(options.build) / "tools/make_random_checkpoint"):
            if not os.access(tool, os.X_OK):
                sys.exit(f"'{tool}' is missing: make all {tool}")
        n_token = max(options.samples * options.seq_len, options.tokens if options.llama else 0)
        if not os.path.isfile(options.data) or file_bytes(options.data) < TEXT_BYTES * n_token:
            sys.exit(f"'{options.data}' is no text of at least {TEXT_BYTES * n_token} bytes, for {n_token} tokens")
        if options.llama:
            self.check_peer()

    def check_peer(self):
        for program in ("llama-imatrix", "llama-quantize"):
            if not shutil.which(self.options.llama / program):
                sys.exit(f"'{self.options.llama}' has no {program}: tests/race/peer.sh builds it")
        if subprocess.run([self.options.python, "-c", "import gguf, numpy"], capture_output=True, check=False).returncode:
            sys.exit(f"'{self.options.python}' has no gguf and numpy: tests/race/peer.sh makes such a Python")

    def check_room(self):
        """Disk for checkpoint, journal and a temporary file, or checkpoint and GGUF file; memory for the writer of GGUF
        files, which holds all of it."""
        n_weight = self.doctor(self.layers, self.vocabulary)["dimensions"]["parameters"]
        disk, free = 5.0 * n_weight, shutil.disk_usage(self.folder).free
        if free < disk:
            sys.exit(f"'{self.folder}' has {gb(free)} free, expected at least {gb(disk)}")
        text = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")
        free, memory = 1024 * int(re.search(r"MemAvailable:\s*(\d+)", text).group(1)), 2.2 * n_weight
        if self.options.llama and free < memory:
            sys.exit(f"{gb(free)} of memory are free, expected at least {gb(memory)} to write the GGUF file")


# ---- what follows ----


def sum_of(phases, names, member):
    """Over those of the names that are there."""
    return sum(phase[member] for name, phase in phases.items() if name in names)


def count_windows(said):
    """Windows of searching and certifying for as many plans as were measured, and the plans."""
    foretold, measured = said["forecast"]["phases"], said["measured"]
    searched = foretold["fitting experts"]["windows"]
    few = min(searched, FEW_WINDOWS)
    few_select = min(foretold["routing, original"]["windows"] - searched, FEW_WINDOWS)
    # A plan of the source's own weights takes no evaluation; a test that ended early took half of the windows.
    tests = [test for test in said["sequence"] if test["result"] != "not tested" and test["loss_high"] != 0]
    n_early = sum(test["loss_high"] is None for test in tests)
    return {SEARCH: few * (1 + measured["search"]) + (2 * few_select if measured["select"] else 0),
            "certifying": said["windows"] * (1 + len(tests) - n_early / 2)}, len(tests)


def rows_of(said):
    """Of each phase: windows, forecast for as many, processor seconds."""
    foretold = said["forecast"]["phases"]
    taken = {phase["phase"]: phase for phase in said["phases"] if phase["phase"] != "all"}
    counted, _ = count_windows(said)
    rows = {}
    for name, (in_forecast, in_taken) in PHASES.items():
        windows, seconds = (sum_of(foretold, in_forecast, member) for member in ("windows", "core_seconds"))
        if name in counted and windows > 0:
            seconds *= counted[name] / windows
            windows = counted[name]
        rows[name] = (windows, seconds, sum_of(taken, in_taken, "processor_seconds"))
    return rows


def carried(rows, results, which):
    """Core-seconds by phase of a default compile of the slice or the whole, foretold, and times what the slice took of
    its own forecast. The start reads all weights once."""
    growth = results[which]["dimensions"]["parameters"] / results["slice"]["dimensions"]["parameters"]
    result = {}
    for name, (in_forecast, _) in PHASES.items():
        seconds = sum_of(results[which]["compile"]["forecast"]["phases"], in_forecast, "core_seconds")
        _, foretold, taken = rows[name]
        result[name] = (seconds, seconds * taken / foretold if foretold > 0 else growth * taken)
    return result


# ---- the report ----


def gib(n_bytes):
    return f"{n_bytes / 2**30:.2f} GiB"


def gb(n_bytes):
    return f"{n_bytes / 1e9:.2f} GB"


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    cpu = re.search(r"model name\s*: (.*)", text)
    sets = [name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if re.search(rf"\b{name}\b", text)]
    kib = int(re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(encoding="utf-8")).group(1))
    return f"{cpu.group(1) if cpu else os.uname().machine}, {', '.join(sets)}, {kib / 1048576:.0f} GiB of memory"


def head(race, options):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip()
    version = ""
    if options.llama:
        said = subprocess.run([options.llama / "llama-imatrix", "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"version: (.*)", said.stdout + said.stderr)
        version = f"; llama.cpp {found.group(1) if found else options.peer}"
    lines = [f"## {race.name}", "", "```sh", shlex.join(["tests/race/scale.py", *sys.argv[1:]]), "```", "",
             f"{datetime.date.today():%d %B %Y}; {machine()}, {options.threads} threads. moec {commit}{version}.",
             f"{race.layers} of {race.whole_layers} layers with random weights{', small' if options.small else ''}, "
             f"a vocabulary of {race.vocabulary} (the model: {race.whole_vocabulary}), {options.samples} windows of "
             f"{options.seq_len} tokens, `--max-loss {options.max_loss}`."]
    if race.kept:
        lines.append(f"Of an earlier start: {', '.join(race.kept)}.")
    return lines + [""]


def phase_table(said, rows):
    lines = ["| phase | windows | foretold, processor seconds | taken | taken / foretold |",
             "| --- | --- | --- | --- | --- |"]
    for name, (windows, foretold, taken) in rows.items():
        ratio = f"{taken / foretold:.2f}" if foretold > 0 else ""
        lines.append(f"| {name} | {windows:.0f} | {foretold:.0f} | {taken:.0f} | {ratio} |")
    foretold, taken = (sum(row[at] for row in rows.values()) for at in (1, 2))
    lines.append(f"| all | | {foretold:.0f} | {taken:.0f} | {taken / foretold:.2f} |")
    _, n_test = count_windows(said)
    fitted, measured = said["fitted"], said["measured"]
    n_matrix = 9 * fitted["experts"]
    lines += ["", f"Random weights do not decide as real ones would: {measured['search']} plans were measured on the search "
              f"part, {n_test} were tested on {said['windows']} windows, and the forecast above is for as many (it "
              "counts 7 and 3 otherwise). "
              f"{fitted['expert_matrices']} of {n_matrix} matrices of experts were fitted (at all bitwidths); the "
              "forecast counts 36 %.", ""]
    return lines, taken / foretold


def resource_table(race, result):
    said, options = result["said"], race.options
    allowed = said["forecast"]["memory_bytes"]
    phases = {phase["phase"]: phase for phase in said["phases"]}
    total = phases["all"]
    paces = [phases[name]["multiply_adds"] / phases[name]["processor_seconds"] / 1e9 for name in ("all", "certifying")]
    return ["| | |", "| --- | --- |",
            f"| peak memory | {gib(said['peak_bytes'])} |",
            f"| `--work-memory {options.work_memory}` and the largest layer | {gib(allowed)} |",
            f"| checkpoint; read from it in all | {gb(result['checkpoint_bytes'])}; {gb(total['read_bytes'])} |",
            f"| journal, foretold | {gb(result['journal_bytes'])}, {gb(said['forecast']['fitted_bytes'])} |",
            f"| bundle | {gb(result['bundle_bytes'])} |",
            f"| seconds | {result['seconds']:.0f} |",
            f"| G multiply-adds a processor second: in all; while certifying | {paces[0]:.1f}; {paces[1]:.1f} |", ""]


def peer_table(results, rows):
    """And moec's processor time relative to llama.cpp's, both as a default compile takes it."""
    imatrix, quantize, compiled = results["imatrix"], results["quantize"], results["compile"]
    default = sum(after for _, after in carried(rows, results, "slice").values())
    theirs = imatrix["processor_seconds"] + quantize["processor_seconds"]
    peak = max(imatrix["peak_bytes"], quantize["peak_bytes"])
    return ["| the same slice | processor seconds |", "| --- | --- |",
            f"| llama-imatrix, {imatrix['tokens']} tokens | {imatrix['processor_seconds']:.0f} |",
            f"| llama-quantize to IQ3_S ({gb(quantize['bytes'])} from {gb(quantize['gguf_bytes'])}) | "
            f"{quantize['processor_seconds']:.0f} |",
            f"| both (peak {gib(peak)}) | {theirs:.0f} |",
            f"| moec compile, as it ran | {compiled['processor_seconds']:.0f} |",
            f"| moec compile with its 896 windows, computed | {default:.0f} |",
            f"| relative to llama.cpp | {default / theirs:.2f} |", ""], default / theirs


def whole_table(race, results, rows):
    forecast = results["whole"]["compile"]["forecast"]
    lines = [f"| {race.name}, whole | foretold, core-hours | times taken / foretold |", "| --- | --- | --- |"]
    phases = carried(rows, results, "whole")
    for name, (foretold, after) in phases.items():
        lines.append(f"| {name} | {foretold / 3600:.2f} | {after / 3600:.2f} |")
    lines.append("| all | {:.1f} | {:.1f} |".format(*(sum(each[at] for each in phases.values()) / 3600 for at in (0, 1))))
    if "imatrix" in results:
        work, parameters = ([results[which][part][name] for which in ("whole", "slice")] for part, name in
                            (("profile", "pass_multiply_adds"), ("dimensions", "parameters")))
        theirs = results["imatrix"]["processor_seconds"] * work[0] / work[1] + \
            results["quantize"]["processor_seconds"] * parameters[0] / parameters[1]
        lines.append(f"| llama.cpp, by multiply-adds and weights | | {theirs / 3600:.1f} |")
    return lines + [f"| journal, foretold | {gb(forecast['fitted_bytes'])} | |", ""]


def report(race, results):
    """The text, and whether all goals are reached."""
    said = results["compile"]["said"]
    rows = rows_of(said)
    phases, ratio = phase_table(said, rows)
    goals = [("the forecast is within 25 %", abs(1 / ratio - 1) <= FORECAST_GOAL),
             ("memory is within its limit", said["peak_bytes"] <= said["forecast"]["memory_bytes"])]
    lines = head(race, race.options) + phases + resource_table(race, results["compile"])
    if "imatrix" in results:
        table, relative = peer_table(results, rows)
        lines += table
        goals.append((f"at most {PEER_GOAL:g} times llama.cpp's processor time", relative <= PEER_GOAL))
    lines += whole_table(race, results, rows)
    lines += [f"- {what}: {'reached' if is_reached else 'missed'}" for what, is_reached in goals]
    return "\n".join(lines) + "\n", all(is_reached for _, is_reached in goals)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=list(SHAPES))
    parser.add_argument("--layers", type=int, help="of the slice (default: 4 of olmoe, 2 of the others)")
    parser.add_argument("--vocab", type=int, help="tokens of the slice's vocabulary (default: the model's): the slice has "
                        "the model's proportions where this is cut as its layers are")
    parser.add_argument("--samples", type=int, default=64, help="windows of the compile (default 64, at least 32)")
    parser.add_argument("--seq-len", type=int, default=256, help="tokens of a window")
    parser.add_argument("--max-loss", default="2%")
    parser.add_argument("--work-memory", default="4GiB")
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--tokens", type=int, default=100000, help="of llama-imatrix")
    parser.add_argument("--llama", type=pathlib.Path, help="folder of llama-imatrix and llama-quantize")
    parser.add_argument("--peer", default="of llama-cpp-python's source", help="its version, for the report")
    parser.add_argument("--python", default=sys.executable, help="that has gguf and numpy")
    parser.add_argument("--build", default=os.environ.get("MOEC_BUILD", ROOT / "build"))
    parser.add_argument("--work", default=ROOT / "build/race-scale", help="folder of what is made")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--small", action="store_true", help="a tiny model of the same family, to try this script")
    parser.add_argument("--keep", action="store_true", help="keep checkpoint and GGUF file")
    parser.add_argument("-o", "--output", help="also write the report here")
    options = parser.parse_args()
    race = Race(options)
    race.check()
    race.begin()
    race.check_room()
    text, is_reached = report(race, race.run())
    print(text, end="")
    if options.output:
        pathlib.Path(options.output).write_text(text, encoding="utf-8")
    return 0 if is_reached else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on from the last step")
