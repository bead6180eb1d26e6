#!/usr/bin/env python3
"""Checks bundles from outside: transformers on the exported folder must measure the perplexity that moec eval states.

    python3 tests/live/compare_perplexity.py [--moec build/moec] [--bytes N] [BUNDLE DATA.txt]...

Without arguments: bundles of the embedded sample (uniform INT2, INT4 with INT4 dense weights, 16 bits) on its test
text. Each bundle is exported with `moec export` and read by transformers and tokenizers alone; `moec eval` measures
the bundle and the folder on the first N bytes of the text, which must agree to the last bit. The text is one row:
consecutive windows of 256 tokens without overlap, tokens 2 to n scored, a window's own BOS unscored. Agreement with
transformers (float32, eager attention) is a relative difference of at most 1e-4. Exits 1 when a comparison fails, 77
where transformers is missing.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "sample"
LIMIT = 1e-4
SEQ_LEN = 256


def compile_sample(moec, folder):
    """Bundles of the sample without data: (path, text)."""
    for name, options in {
        "int2": ["--bits", "2"],
        "int4-dense4": ["--bits", "4", "--dense-bits", "4", "--group", "32"],
        "bf16": ["--bits", "16"],
    }.items():
        bundle = folder / f"sample-{name}.moec"
        subprocess.run([moec, "compile", SAMPLE / "model", "--policy", "uniform", *options, "-o", bundle, "--quiet"],
                       check=True, stdout=subprocess.DEVNULL)
        yield bundle, SAMPLE / "test.txt"


def measured(moec, model, data):
    done = subprocess.run([moec, "eval", model, "--data", data, "--seq-len", str(SEQ_LEN), "--json", "--quiet"],
                          check=True, capture_output=True)
    result = json.loads(done.stdout)
    return result["value"], result["tokens"]


def reference(folder, data):
    """Perplexity and scored tokens in transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = tokenizer(data.read_text(encoding="utf-8"), add_special_tokens=True)["input_ids"]
    prefix = tokenizer("", add_special_tokens=True)["input_ids"][:1]
    if prefix and ids[:1] == prefix:
        ids = ids[1:]
    step = SEQ_LEN - len(prefix)
    nll, scored = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(ids), step):
            window = torch.tensor([prefix + ids[first:first + step]])
            if window.shape[1] < 2:
                continue
            logits = model(window).logits[0, :-1].double()
            targets = window[0, 1:]
            nll -= torch.log_softmax(logits, dim=-1).gather(1, targets[:, None]).sum().item()
            scored += targets.numel()
    return math.exp(nll / scored), scored


def compare(moec, bundle, data, folder):
    exported = folder / (bundle.stem + "-exported")
    subprocess.run([moec, "export", bundle, "-o", exported, "--quiet"], check=True, stdout=subprocess.DEVNULL)
    ours, our_tokens = measured(moec, bundle, data)
    again, _ = measured(moec, exported, data)
    theirs, their_tokens = reference(exported, data)
    difference = abs(ours - theirs) / theirs
    good = difference <= LIMIT and ours == again and our_tokens == their_tokens
    print(f"{'ok' if good else 'FAILED'} {bundle.name} on {data.name}: moec eval {ours:.9f}, of "
          f"the folder {again:.9f}, transformers {theirs:.9f} ({our_tokens} and {their_tokens} tokens): relative "
          f"difference {difference:.2e}, limit {LIMIT:g}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--bytes", type=int, default=24000, help="of each text (default 24000)")
    parser.add_argument("pairs", nargs="*", metavar="BUNDLE DATA.txt")
    options = parser.parse_args()
    disable_progress_bar()
    if len(options.pairs) % 2:
        parser.error("give each bundle with its data")
    good = True
    with tempfile.TemporaryDirectory(prefix="moec-perplexity-") as temporary:
        folder = pathlib.Path(temporary)
        pairs = list(zip(map(pathlib.Path, options.pairs[::2]), map(pathlib.Path, options.pairs[1::2])))
        for bundle, text in pairs or compile_sample(options.moec, folder):
            data = folder / text.name
            data.write_text(text.read_bytes()[:options.bytes].decode("utf-8", errors="ignore"), encoding="utf-8")
            good = compare(options.moec, bundle, data, folder) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
