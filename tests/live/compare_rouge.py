"""Compares moec's ROUGE with Python's rouge-score on pairs of texts, and its stemmer with NLTK's on words.

    make build/tools/rouge
    python3 tests/live/compare_rouge.py [--program P] [--pairs N] [--seed S] [FILE ...]

FILEs (text, CSV, JSONL; .zst is unpacked with zstdcat) give the words and lines that half of the pairs are drawn from;
without them text is made here. The other half is random: every script, punctuation, control characters, long runs.
Prints TAP lines; exits 1 on a difference of more than 1e-9, 77 where rouge-score is missing.
"""

import argparse
import os
import random
import re
import struct
import subprocess
import sys
import unicodedata

try:
    from nltk.stem.porter import PorterStemmer
    from rouge_score import rouge_scorer
except ImportError:
    print("1..0 # SKIP no rouge-score library")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KINDS = ["rouge1", "rouge2", "rougeL"]
ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
LOWERING_TO_ASCII = [c for c in ASSIGNED if c > 127 and re.search("[a-z0-9]", chr(c).lower())]
ENDINGS = """ed ing y ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness ousness aliti
iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment ent ion sion tion ou
ism ate iti ous ive ize e ll s ies ied sses eed""".split()


def read_lines(path):
    if path.endswith(".zst"):
        text = subprocess.run(["zstdcat", path], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8")
    else:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    return [line for line in re.split(r'[\n"]', text) if len(line.split()) > 3]


def random_word(rng):
    stem = "".join(rng.choice("abcdefghijklmnopqrstuvwxyzaeiouy0" + "sy") for _ in range(rng.randrange(0, 8)))
    return stem + "".join(rng.choice(ENDINGS) for _ in range(rng.randrange(0, 3)))


def random_text(rng):
    kind = rng.randrange(5)
    n = rng.choice([0, 1, 2, 5, 20, 60])
    if kind == 0:
        return "".join(chr(rng.choice(ASSIGNED)) for _ in range(n))
    if kind == 1:
        return "".join(chr(rng.randrange(128)) for _ in range(n))
    if kind == 2:
        return "".join(rng.choice(["a", "B", " ", "c"] + [chr(c) for c in LOWERING_TO_ASCII]) for _ in range(n))
    vocabulary = [random_word(rng) for _ in range(10)]
    return "".join(rng.choice(vocabulary) + rng.choice([" ", "-", ", ", "\n", "\u3000"]) for _ in range(n))


def pair_from(rng, lines):
    reference = rng.choice(lines)
    if rng.random() < 0.3:
        return reference, rng.choice(lines)
    words = reference.split()
    candidate = [rng.choice(words) if rng.random() < 0.1 else w for w in words if rng.random() < 0.7]
    return reference, " ".join(candidate + rng.choice(lines).split()[: rng.randrange(0, 12)])


def run(program, records):
    stream = b"".join(letter + b"".join(struct.pack("<I", len(t)) + t for t in texts) for letter, *texts in records)
    return subprocess.run([program], input=stream, stdout=subprocess.PIPE, check=True).stdout


def compare_words(program, words):
    out = run(program, [(b"w", w.encode(), b"") for w in words])
    stemmer = PorterStemmer()
    at = differ = 0
    for word in words:
        (n,) = struct.unpack_from("<I", out, at)
        ours = out[at + 4:at + 4 + n].decode()
        at += 4 + n
        if ours != stemmer.stem(word):
            differ += 1
            print(f"# {word}: {ours}, NLTK {stemmer.stem(word)}")
    return differ


def compare_pairs(program, pairs, stem):
    scorer = rouge_scorer.RougeScorer(KINDS, use_stemmer=stem)
    letter = b"s" if stem else b"p"
    out = run(program, [(letter, a.encode(), b.encode()) for a, b in pairs])
    differ, largest = 0, 0.0
    for i, (reference, candidate) in enumerate(pairs):
        scores = scorer.score(reference, candidate)
        theirs = [v for k in KINDS for v in (scores[k].precision, scores[k].recall, scores[k].fmeasure)]
        ours = struct.unpack_from("<9d", out, 72 * i)
        worst = max(abs(a - b) for a, b in zip(ours, theirs))
        largest = max(largest, worst)
        if worst > 1e-9:
            differ += 1
            print(f"# {reference!r} {candidate!r}: {ours}, rouge-score {theirs}")
    return differ, largest


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=os.path.join(ROOT, "build/tools/rouge"))
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    lines = [line for path in args.files for line in read_lines(path)]
    if not lines:
        lines = [" ".join(random_word(rng) for _ in range(rng.randrange(3, 40))) for _ in range(500)]
    words = sorted({w for line in lines for w in re.findall("[a-z0-9]+", line.lower())} |
                   {random_word(rng) for _ in range(50000)})
    words = [w for w in words if w]
    pairs = [pair_from(rng, lines) if i % 2 == 0 else (random_text(rng), random_text(rng)) for i in range(args.pairs)]
    pairs += [(a, a) for a, _ in pairs[:20]]
    print("1..3")
    differ = compare_words(args.program, words)
    failed = bool(differ)
    print(f"{'not ok' if differ else 'ok'} 1 - stems of {len(words)} words, {differ} differ")
    for number, stem in enumerate([False, True], 2):
        differ, largest = compare_pairs(args.program, pairs, stem)
        failed |= bool(differ)
        print(f"{'not ok' if differ else 'ok'} {number} - ROUGE-1, 2, L {'with' if stem else 'without'} stemming on "
              f"{len(pairs)} pairs, {differ} differ, at most {largest:.1e}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
