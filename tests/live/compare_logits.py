#!/usr/bin/env python3
"""Compares moec's logits with those of transformers on fresh random checkpoints of every family.

    python3 tests/live/compare_logits.py [--tool build/tools/logits] [--seeds N] [--tokens N] [NAME ...]

Needs what tests/fixtures/make_families.py (transformers 4) or make_recent_families.py (5, without Switch) needs, and
`make build/tools/logits`. The tool is called as `logits CHECKPOINT TOKENS.u32 OUT.f32` for prefill, with --step for decoding
token by token, and with a small --chunk. Agreement is
max |ours - theirs| <= 1e-4 x (max - min of theirs) at every position; for encoder-decoder models at every position of
a target that transformers read in one call. Of layers that keep a running state, whose rounding transformers' own prefill
and decoding do not agree on, theirs is what transformers computes in float64 (make_exact.py). Exits 1 when a comparison fails, 77 where transformers is missing.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fixtures"))

try:
    import numpy as np
    import make_exact  # its folder was put on the path above
    import make_families
    import make_recent_families
    import torch
    import transformers
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

LIMIT = 1e-4

# Families whose fixtures are make_families.py's, as transformers 5 makes and writes them.
OLDER = {
    "olmoe": ("olmoe", dict(make_recent_families.BASE, num_hidden_layers=3, num_experts=8, num_experts_per_tok=3,
                            intermediate_size=13, clip_qkv=1.5, norm_topk_prob=True)),
    "mixtral": ("mixtral", dict(make_recent_families.BASE, head_dim=12, num_hidden_layers=3, num_local_experts=6,
                                num_experts_per_tok=2, intermediate_size=20, sliding_window=11)),
    "qwen2_moe": ("qwen2_moe", dict(make_recent_families.BASE, num_hidden_layers=3, num_experts=6,
                                    num_experts_per_tok=3, moe_intermediate_size=11,
                                    shared_expert_intermediate_size=20, intermediate_size=28, mlp_only_layers=[1],
                                    tie_word_embeddings=True)),
}

MODES = {"prefill": [], "decoding": ["--step"], "chunks of 7": ["--chunk", "7"]}


def reference(name, folder):
    """Logits of transformers at every position."""
    tokens = np.fromfile(folder / "tokens.u32", "<u4")
    if name not in make_exact.NAMES:
        return np.fromfile(folder / "logits.f32", "<f4").reshape(len(tokens), -1)
    exact = make_exact.exact_model(make_recent_families.load(make_recent_families.VARIANTS[name][0], folder))
    with make_exact.float32_is_float64():
        return make_exact.prefill(exact, tokens)


def compare(tool, folder, arguments, theirs):
    """Largest difference over all positions, as a part of the spread of theirs there."""
    if (folder / "source.u32").exists():
        arguments = [*arguments, "--source", folder / "source.u32"]
    subprocess.run([tool, folder, folder / "tokens.u32", folder / "ours.f32", *arguments], check=True)
    ours = np.fromfile(folder / "ours.f32", "<f4")
    if ours.size != theirs.size:
        raise SystemExit(f"{folder.name}: {ours.size} logits, expected {theirs.size}")
    difference = np.abs(ours.reshape(theirs.shape) - theirs).max(axis=1)
    return float(np.nan_to_num(difference / np.ptp(theirs, axis=1), nan=np.inf).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default=str(ROOT / "build" / "tools" / "logits"))
    parser.add_argument("--seeds", type=int, default=3, help="checkpoints of each family (default 3)")
    parser.add_argument("--first-seed", type=int, default=None, help="default: a random one, which is printed")
    parser.add_argument("--tokens", type=int, default=96)
    # Each script needs the release of transformers that its fixtures were made with.
    maker = make_recent_families if transformers.__version__ >= "5" else make_families
    make_recent_families.VARIANTS.update(OLDER)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(maker.VARIANTS)} (default: all)")
    options = parser.parse_args()
    seed = options.first_seed if options.first_seed is not None else random.randrange(1000, 1 << 30)
    failed = 0
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)  # of models this small, other threads only wait
    with tempfile.TemporaryDirectory(prefix="moec-logits-") as temporary:
        for name in options.names or maker.VARIANTS:
            next_seed = seed
            for _ in range(options.seeds):
                folder = pathlib.Path(temporary) / name
                taken = maker.make(name, folder, next_seed, options.tokens, ordered=False)
                theirs = reference(name, folder)
                for mode, arguments in MODES.items():
                    worst = compare(options.tool, folder, arguments, theirs)
                    good = worst <= LIMIT
                    failed += not good
                    print(f"{'ok' if good else 'FAILED'} {name} seed {taken}, {mode}: {worst:.2e} of the spread, "
                          f"limit {LIMIT:g}", flush=True)
                next_seed = taken + 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
