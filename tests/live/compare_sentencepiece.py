"""Compares moec's reading of SentencePiece's .model with the sentencepiece library on random text.

    make build/tools/tokenize
    python3 tests/live/compare_sentencepiece.py [--program P] [--strings N] [--seed S] [FILE.model ...]

Without files: the fixtures of tests/fixtures/sentencepiece and models trained on the way, with every normalisation that
the library brings. Text is that of compare_tokenizers.py, as far as it is valid UTF-8 without NUL. Prints TAP lines; exits
1 on a difference, 77 where a library is missing.
"""

import argparse
import glob
import os
import random
import sys
import tempfile

try:
    import sentencepiece as spm
    import tokenizers  # noqa: F401
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/fixtures"))
import compare_tokenizers
import make_sentencepiece

PIECES = ["<s>", "</s>", "<unk>", "<0x41>", "<pad>"]


def trained(folder):
    for kind in ["unigram", "bpe"]:
        for rule in ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "identity"]:
            for extra in [{}, {"byte_fallback": True, "remove_extra_whitespaces": False}, {"add_dummy_prefix": False}]:
                path = os.path.join(folder, f"{kind}-{rule}-{len(extra)}.model")
                with open(path, "wb") as f:
                    f.write(make_sentencepiece.train(model_type=kind, vocab_size=760, normalization_rule_name=rule,
                                                     character_coverage=0.985, **extra))
                yield f"{kind}, {rule}, {extra}", path


def texts(rng, count):
    while count > 0:
        text = compare_tokenizers.random_text(rng, PIECES)
        if "\0" not in text and not any(0xD800 <= ord(c) < 0xE000 for c in text):
            yield text
            count -= 1


def compare(program, path, count, rng, model=None):
    """Texts whose ids are others than the library's with `model`, which is the file itself unless it is another."""
    processor = spm.SentencePieceProcessor(model_file=model or path)
    strings = list(texts(rng, count))
    wanted = processor.encode(strings)
    answers = compare_tokenizers.run(program, path, [("e", s.encode("utf-8")) for s in strings])
    if answers is None:
        return [("load", None, None)]
    return [(s, w, a) for s, w, a in zip(strings, wanted, answers) if w != a]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=os.path.join(ROOT, "build/tools/tokenize"))
    parser.add_argument("--strings", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(f, f) for f in args.files]
        if not jobs:
            jobs = [(f, f) for f in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/sentencepiece/*/*.model")))]
            jobs += list(trained(folder))
        print(f"1..{len(jobs)}")
        for number, (name, path) in enumerate(jobs, 1):
            differences = compare(args.program, path, args.strings, rng)
            failed += bool(differences)
            print(f"{'not ok' if differences else 'ok'} {number} - {name}: {args.strings} texts, {len(differences)} differ",
                  flush=True)
            for text, want, got in sorted(differences, key=lambda d: len(d[0]))[:3]:
                print(f"#   {text!r}\n#     library {want!r}\n#     moec    {got!r}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
