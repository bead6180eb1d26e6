#!/usr/bin/env python3
"""Compares moec's logits on the fixtures of families with llama.cpp's, which are computed by code that no one here wrote.

    MOEC_PEER=folder-of-tests/race/peer.sh python3 tests/live/compare_llama_cpp.py [--tool build/tools/logits] [NAME ...]

llama.cpp's own converter writes each fixture in F32, without a vocabulary. Listed are the families whose fixtures
llama.cpp can represent, DeepSeekMoE and MiniCPM-MoE among them, which transformers 5 lacks. Agreement is as in
compare_logits.py. Needs a C++ compiler and what tests/fixtures/make_gguf_families.py needs. Exits 1 when a comparison
fails, 77 where something is missing.
"""

import argparse
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PEER = pathlib.Path(os.environ.get("MOEC_PEER", "."))
SOURCE = next(iter(PEER.glob("src/llama_cpp_python-*/vendor/llama.cpp")), None)
if SOURCE is None or not (PEER / "llama" / "src" / "libllama.a").exists():
    print("1..0 # SKIP no llama.cpp as tests/race/peer.sh builds it ($MOEC_PEER)")
    sys.exit(77)
sys.path[:0] = [str(SOURCE), str(FIXTURES)]

try:
    import conversion
    import make_gguf_families
    import numpy as np
    import torch
    from conversion import base
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

LIMIT = 1e-4
SIGMOID = dict(scoring_func="sigmoid")  # what published config.json say and transformers' classes assume
NAMES = {"deepseek": {}, "minicpm": {}, "mixtral": {}, "glm4_moe": SIGMOID, "minimax_m2": SIGMOID, "granitemoe": {},
         "granitemoeshared": {}, "granitemoehybrid": {}, "lfm2_moe": {}, "gpt_oss": {}, "deepseek_v3": SIGMOID,
         "glm4_moe_lite": SIGMOID}
LIBRARIES = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")


def build(program):
    subprocess.run(["c++", "-O1", f"-I{SOURCE}/include", f"-I{SOURCE}/ggml/include", ROOT / "tests/live/llama_logits.cpp",
                    *[PEER / "llama" / library for library in LIBRARIES], "-fopenmp", "-lpthread", "-ldl", "-lm",
                    "-o", program], check=True)


def stack(tensors):
    """MiniCPM's experts as llama.cpp holds them, which its converter does only for other families."""
    made = {}
    for name, tensor in tensors.items():
        expert = re.fullmatch(r"(model\.layers\.\d+\.)mlp\.experts\.(\d+)\.(w\d\.weight)", name)
        if expert is None:
            made[name.replace("mlp.gate.", "block_sparse_moe.gate.")] = tensor
        else:
            made.setdefault(f"{expert[1]}block_sparse_moe.experts.{expert[3]}", {})[int(expert[2])] = tensor
    return {name: torch.stack([part[e] for e in sorted(part)]) if isinstance(part, dict) else part
            for name, part in made.items()}


def convert(name, out):
    source = FIXTURES / "families" / name
    config = json.loads((source / "config.json").read_text())
    config.update(make_gguf_families.ADDED.get(name, {}), **NAMES[name])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(source / "model.safetensors", folder)
        if name == "minicpm":
            save_file(stack(load_file(source / "model.safetensors")), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        architecture = conversion.get_model_architecture(conversion.ModelBase.load_hparams(folder, False),
                                                         conversion.ModelType.TEXT)
        model = conversion.get_model_class(architecture)(folder, base.gguf.LlamaFileType.ALL_F32, out, model_name=name)

        def no_vocabulary():
            model.gguf_writer.add_tokenizer_model("no_vocab")
            model.gguf_writer.add_vocab_size(config["vocab_size"])

        model.set_vocab = no_vocabulary
        model.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default=str(ROOT / "build" / "tools" / "logits"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)} (default: all)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="moec-llama-") as work:
        work = pathlib.Path(work)
        build(work / "llama_logits")
        for name in options.names or NAMES:
            source = FIXTURES / "families" / name
            convert(name, work / "model.gguf")
            subprocess.run([work / "llama_logits", work / "model.gguf", source / "tokens.u32", work / "theirs"], check=True)
            subprocess.run([options.tool, source, source / "tokens.u32", work / "ours"], check=True)
            n_tokens = (source / "tokens.u32").stat().st_size // 4
            theirs, ours = (np.fromfile(work / file, "<f4").reshape(n_tokens, -1) for file in ("theirs", "ours"))
            worst = float((np.abs(ours - theirs).max(axis=1) / np.ptp(theirs, axis=1)).max())
            failed += not worst <= LIMIT
            print(f"{'ok' if worst <= LIMIT else 'FAILED'} {name}: {worst:.2e} of the spread, limit {LIMIT:g}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
