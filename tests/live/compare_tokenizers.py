"""Compares moec's tokenizer with the `tokenizers` library on random text.

    make build/tools/tokenize
    python3 tests/live/compare_tokenizers.py [--program P] [--strings N] [--seed S] [FILE.json ...]

Without files: every fixture in tests/fixtures/tokenizers on N strings (default 10000), and a set of variants made on
the way (split behaviours, metaspace schemes, patterns) on a fifth as many. Text is drawn from all code points that this
Python's unicodedata assigns, from scripts, code, white space, the tokenizer's own added tokens, and mutated bytes.
Checked: ids without and with the post-processor, decoding with and without special tokens, of encoded and of random ids,
and decoding as a stream.
Prints TAP lines; differences are shown as reprs. Exits 1 on a difference, 77 where `tokenizers` is missing.
"""

import argparse
import base64
import copy
import glob
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    from tokenizers import Tokenizer
except ImportError:
    print("1..0 # SKIP no tokenizers library")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
KNOWN = set(map(chr, ASSIGNED)) | set(map(chr, range(0xE000, 0xF900)))
MARKS = [c for c in ASSIGNED if unicodedata.combining(chr(c))]
DECOMPOSING = [c for c in ASSIGNED if unicodedata.decomposition(chr(c))]
SPACES = [0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1F, 0x20, 0x20, 0x20, 0x85, 0xA0, 0x1680, 0x180E, 0x2000, 0x2009, 0x200B,
          0x200C, 0x200D, 0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
WORDS = ["the", "it's", "IT'S", "we'll", "'S", "'ſ", "'ll", "'", "''", "``", "def", "return", "()", "{}", "[]", "=>", "--",
         "->", "...", "…", "0", "12", "345", "6789", "3.14", "x_1", "été", "Straße", "日本語", "한국어", "привет", "ไทย",
         "العربية", "हिन्दी", "👩‍👩‍👧", "🏽", "🇫🇷", "\r\n", "\n\n", "\t", "▁", "▁▁", "Ġ", "<0x41>", "<0xE2>", "\x00", "ab", "xyz",
         "fancy<n>", "Fancy<N>", "word", "²", "½", "Ⅳ", "ⓐ"]


def random_text(rng, added):
    kind = rng.randrange(9)
    length = rng.choice([1, 2, 3, 5, 8, 13, 21, 34, 55])
    if kind == 0:
        return "".join(chr(rng.choice(ASSIGNED)) for _ in range(length))
    if kind == 1:
        base = rng.randrange(len(ASSIGNED))
        return "".join(chr(ASSIGNED[min(base + rng.randrange(120), len(ASSIGNED) - 1)]) if rng.random() < 0.85 else
                       chr(rng.choice(SPACES)) for _ in range(length))
    if kind == 2:
        return "".join(chr(rng.choice(SPACES)) if rng.random() < 0.6 else rng.choice("aZ0.'é日") for _ in range(length))
    if kind == 3:
        return "".join(chr(rng.randrange(128)) for _ in range(length))
    if kind == 4:
        return "".join(rng.choice(WORDS) + rng.choice(["", " ", "  ", "\n"]) for _ in range(length))
    if kind == 5:
        return "".join(chr(rng.choice(MARKS)) if rng.random() < 0.7 else chr(rng.choice(DECOMPOSING)) for _ in range(length))
    if kind == 6:
        pick = [lambda: chr(rng.randrange(0x1100, 0x1200)), lambda: chr(rng.randrange(0xAC00, 0xD7A4)),
                lambda: chr(rng.choice(DECOMPOSING)), lambda: rng.choice(" a")]
        return "".join(rng.choice(pick)() for _ in range(length))
    if kind == 7 and added:
        parts = [rng.choice(added) if rng.random() < 0.5 else rng.choice(WORDS + [" ", "  ", "\n"]) for _ in range(length)]
        return "".join(p if rng.random() < 0.9 else p[:-1] for p in parts)
    return "".join(rng.choice("abcdefgh ABC012.,!?-_\n") for _ in range(length * 3))


def random_bytes(rng, added):
    data = bytearray(random_text(rng, added).encode("utf-8", errors="surrogatepass"))
    if rng.random() < 0.3:
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            what = rng.randrange(4)
            if what == 0 and at < len(data):
                data[at] = rng.randrange(256)
            elif what == 1 and at < len(data):
                del data[at]
            elif what == 2:
                data.insert(at, rng.choice([0x80, 0xBF, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, rng.randrange(256)]))
            else:
                data = data[:at]
    return bytes(data)


def variants():
    """Tokenizers with one uncommon step each, on the vocabularies of the fixtures."""
    def load(name):
        with open(os.path.join(ROOT, "tests/fixtures/tokenizers", name, "tokenizer.json"), encoding="utf-8") as f:
            return json.load(f)

    base = load("words")
    base["decoder"] = {"type": "Fuse"}
    base["model"]["unk_token"] = "_"
    bytes_base = load("gpt2")
    mixtral = load("mixtral")
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            for pattern in [{"Regex": r"\s+|\d"}, {"Regex": r"\w"}, {"Regex": r"[^\w\s]|(?<=a)b*"}, {"String": "a"}, {"Regex": "x*"}]:
                data = copy.deepcopy(bytes_base)
                data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert},
                    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}]}
                yield f"split {pattern} {behavior} {invert}", data
        data = copy.deepcopy(base)
        data["pre_tokenizer"] = {"type": "Punctuation", "behavior": behavior}
        yield f"punctuation {behavior}", data
    for scheme in ["always", "first", "never"]:
        for cut in [False, True]:
            data = copy.deepcopy(mixtral)
            data["normalizer"] = None
            data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            data["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            yield f"metaspace {scheme} {cut}", data
            for normalizer in [{"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFD"}, {"type": "NFKD"},
                               {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
                               {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
                               {"type": "Replace", "pattern": {"Regex": ""}, "content": "▁"}][: 6 if scheme == "first" else 0]:
                if normalizer.get("pattern") == {"Regex": ""}:
                    continue
                data = copy.deepcopy(data)
                data["normalizer"] = normalizer
                yield f"metaspace {scheme} {cut} {normalizer}", data
    for fuse in [False, True]:
        data = copy.deepcopy(mixtral)
        data["model"]["fuse_unk"] = fuse
        data["model"]["vocab"].pop("<0xE2>")
        data["model"]["vocab"]["<0xZZ>"] = 999
        data["model"]["vocab"] = {k: i for i, k in enumerate(data["model"]["vocab"])}
        yield f"missing byte, fuse {fuse}", data
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]:
        data = copy.deepcopy(bytes_base)
        data["normalizer"] = {"type": form}
        yield f"normalizer {form}", data
    for digits in [False, True]:
        data = copy.deepcopy(bytes_base)
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": digits}, data["pre_tokenizer"]]}
        yield f"digits {digits}", data
    gpt4o = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
             r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    deepseek = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"]
    for name, patterns in [("gpt-4o", [gpt4o]), ("deepseek", deepseek), ("script", [r"\p{Han}+|\p{Hiragana}|.$|^\w"])]:
        data = copy.deepcopy(bytes_base)
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            *[{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns],
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        yield name, data
    # Sets in sets, as Kimi K2 and BLOOM have them, and what else Oniguruma makes of them.
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    end = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    kimi = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + upper + "*" + lower + "+" + end + r"|[^\r\n\p{L}\p{N}]?" + upper + "+" + lower
            + "*" + end + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    for pattern in [kimi, r" ?[^(\s|[.,!?…。，、।۔،])]+", "[a-m[x-z]0]+", "[^a-m[x-z]0]+", r"[\w&&[^\d_]&&[a-zé]]+|.", r"[^\w&&[^aeiou]]+",
                    r"[[a-c][^\s[x]]]+", r"(?i:[a-k&&[^c]])+|[[^b]&&\w]"]:
        data = copy.deepcopy(bytes_base)
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        yield f"sets {pattern}", data
    data = copy.deepcopy(bytes_base)
    data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "ByteLevel"}]}
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "Ġ?[^Ġ]+|Ġ"}, "behavior": "Isolated", "invert": False}
    for added in data["added_tokens"]:
        added["normalized"] = False
    yield "normalizer ByteLevel", data
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"]:
        for first in [{"type": "Digits", "individual_digits": True},
                      {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}]:
            data = copy.deepcopy(mixtral)
            data["normalizer"] = {"type": form}
            data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
                first, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}]}
            yield f"first character {form} {first['type']}", data


def charsmap(name):
    """SentencePiece's own character map, as base64; None without the library."""
    try:
        import sentencepiece
    except ImportError:
        return None
    model = io.BytesIO()
    text = ["".join(chr(0x61 + (i * 7 + k * k) % 26) for k in range(12)) for i in range(50)]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, vocab_size=60,
                                             hard_vocab_limit=False, normalization_rule_name=name, minloglevel=2)
    sys.path.insert(0, os.path.join(ROOT, "tests/fixtures"))
    import make_tokenizers
    return base64.b64encode(make_tokenizers.precompiled_charsmap(model.getvalue())).decode("ascii")


def unigram_variants():
    """Unigram with SentencePiece's maps and with other steps around it."""
    def load(name):
        with open(os.path.join(ROOT, "tests/fixtures/tokenizers", name, "tokenizer.json"), encoding="utf-8") as f:
            return json.load(f)

    for name in ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf"]:
        text = charsmap(name)
        if text is None:
            continue
        for base in ["unigram", "unigram-bytes"]:
            data = load(base)
            data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": text}
            yield f"{base} with {name}", data
    for scheme in ["always", "first", "never"]:
        for cut in [False, True]:
            data = load("unigram")
            data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
            yield f"unigram, metaspace {scheme} {cut}", data
    data = load("unigram")
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, data["pre_tokenizer"]]}
    yield "unigram, words first", data
    data = load("unigram-bytes")
    data["model"]["vocab"] = [[t if t != "<0xE2>" else "<0xZZ>", s] for t, s in data["model"]["vocab"]]
    yield "unigram, a byte missing", data
    data = load("unigram-bytes")
    data["model"]["vocab"] = [[t, round(s)] for t, s in data["model"]["vocab"]]
    yield "unigram, many cuts of one score", data
    data = load("unigram")
    data["model"]["vocab"] = [[t, -s - 9] for t, s in data["model"]["vocab"]]
    yield "unigram, scores turned round", data


def run(program, path, records):
    stream = b"".join(letter.encode() + struct.pack("<I", len(data)) + data for letter, data in records)
    with tempfile.TemporaryFile() as source:
        source.write(stream)
        source.seek(0)
        done = subprocess.run([program, path], stdin=source, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return None
    out = done.stdout
    at = 0
    answers = []
    for letter, _ in records:
        (count,) = struct.unpack_from("<I", out, at)
        at += 4
        if count == 0xFFFFFFFF:
            answers.append(None)
        elif letter in "eE":
            answers.append(list(struct.unpack_from(f"<{count}I", out, at)))
            at += 4 * count
        else:
            answers.append(out[at:at + count].decode("utf-8"))
            at += count
    return answers


def pack(ids):
    return struct.pack(f"<{len(ids)}I", *ids)


def fallback_runs_valid(tokenizer, ids):
    """The stream differs from the whole where <0xNN> tokens spell broken UTF-8 (runtime/text/tokenizer.h)."""
    run_bytes = b""
    for token in [tokenizer.id_to_token(i) for i in ids] + [None]:
        if token is not None and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                run_bytes += bytes([int(token[3:5], 16)])
                continue
            except ValueError:
                pass
        try:
            run_bytes.decode("utf-8")
        except UnicodeDecodeError:
            return False
        run_bytes = b""
    return True


def compare(program, path, count, rng, tokenizer=None):
    """Differences on `count` random texts between what moec makes of a file and the library's tokenizer of it, and the
    number of checks."""
    tokenizer = tokenizer or Tokenizer.from_file(path)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    texts = []
    while len(texts) < count:
        text = random_bytes(rng, added)
        if all(c in KNOWN for c in text.decode("utf-8", errors="replace")):
            texts.append(text)
    strings = [t.decode("utf-8", errors="replace") for t in texts]
    bare = [e.ids for e in tokenizer.encode_batch(strings, add_special_tokens=False)]
    full = [e.ids for e in tokenizer.encode_batch(strings)]
    size = tokenizer.get_vocab_size()
    jumbled = [[rng.randrange(size + 3) for _ in range(rng.randrange(12))] for _ in range(count // 4)]
    # tokenizers 0.23 decodes an added token to its text as normalised, earlier releases and moec to the text declared.
    renamed = {i for i, t in tokenizer.get_added_tokens_decoder().items() if tokenizer.id_to_token(i) != t.content}
    records, wanted = [], []
    for text, want in zip(texts, bare):
        records.append(("e", text))
        wanted.append(want)
    for text, want in zip(texts, full):
        records.append(("E", text))
        wanted.append(want)
    for ids in (ids for ids in full[: count // 2] + jumbled if renamed.isdisjoint(ids)):
        for letter, skip in [("d", False), ("D", True)]:
            records.append((letter, pack(ids)))
            wanted.append(tokenizer.decode(ids, skip_special_tokens=skip))
        if fallback_runs_valid(tokenizer, [i for i in ids if tokenizer.id_to_token(i) is not None]):
            records.append(("s", pack(ids)))
            wanted.append(tokenizer.decode(ids, skip_special_tokens=False))
    answers = run(program, path, records)
    if answers is None:
        return [("load", path, None, None)], len(records)
    return [(r[0], r[1] if r[0] in "eE" else struct.unpack(f"<{len(r[1]) // 4}I", r[1]), w, a)
            for r, w, a in zip(records, wanted, answers) if w != a], len(records)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=os.path.join(ROOT, "build/tools/tokenize"))
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    failed = 0
    done = 0
    checks = 0
    with tempfile.TemporaryDirectory() as scratch:
        jobs = [(f, f, args.strings) for f in args.files]
        if not jobs:
            jobs = [(f, f, args.strings) for f in sorted(glob.glob(os.path.join(ROOT, "tests/fixtures/tokenizers/*/tokenizer.json")))]
            for i, (name, data) in enumerate([*variants(), *unigram_variants()]):
                path = os.path.join(scratch, f"{i}.json")
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(data, f)
                jobs.append((name, path, args.strings // 5))
        print(f"1..{len(jobs)}")
        for name, path, strings in jobs:
            differences, n = compare(args.program, path, strings, rng)
            checks += n
            done += 1
            failed += bool(differences)
            print(f"{'not ok' if differences else 'ok'} {done} - {name}: {n} checks, {len(differences)} differ", flush=True)
            for letter, subject, want, got in sorted(differences, key=lambda d: len(d[1]))[:3]:
                shown = subject.decode("utf-8", "replace") if isinstance(subject, bytes) else subject
                print(f"#   {letter} {shown!r}\n#     library {want!r}\n#     moec    {got!r}")
    print(f"# {checks} checks")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
