"""Compares the tokenizers that moec reads from GGUF metadata with Hugging Face's.

    make build/tools/tokenize
    python3 tests/live/compare_gguf_vocabularies.py [--program P] [--strings N] [--seed S] [FOLDER]

FOLDER is models/ of llama.cpp's source (also vendor/llama.cpp/models of llama-cpp-python's source package; default:
$LLAMA_CPP_MODELS). Each ggml-vocab-NAME.gguf there is a real vocabulary, with texts in NAME.gguf.inp and the ids that its
own tokenizer gave them in NAME.gguf.out. Then N random texts (those of compare_tokenizers.py) against the `tokenizers`
library, with a tokenizer.json made of the vocabulary and the steps that the model's own one has: both that file and the GGUF
file must give its ids and its texts; of `llama` tokenizers against the sentencepiece library, with a .model. Ways of cutting (`tokenizer.ggml.pre`) of which FOLDER has no vocabulary are compared
on Llama 3's. Prints TAP lines; exits 1 on a difference, 77 without the folder or a library. What moec refuses is shown as
skipped.
"""

import argparse
import os
import pathlib
import random
import struct
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
import compare_tokenizers

try:
    import compare_sentencepiece
    import gguf
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ENDS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASH_TAIL = TAIL.replace(r"[\r\n]*", r"[\r\n/]*", 1)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
QWEN2 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
LLAMA3 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN35 = (ENDS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}?|\p{{N}}{{1,3}}"
         + SLASH_TAIL)
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}" + SLASH_TAIL
EXAONE = (ENDS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
KIMI_UPPER, KIMI_LOWER = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}*{KIMI_LOWER}+{ENDS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{KIMI_UPPER}+{KIMI_LOWER}*{ENDS}?|\p{{N}}{{1,3}}" + TAIL)
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_CODER = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥\u0800-一\uac00-\ud7ff]+"]

# What the tokenizer.json of the models behind a `pre` has: (patterns that isolate their matches, every digit by itself,
# GPT-2's own pattern last, NFC first, whole words that are tokens stay so).
PIPELINES = {
    "gpt-2": ([], False, True, False, False),
    "olmo": ([], False, True, True, False),
    "refact": ([], True, True, False, False),
    "command-r": ([], True, True, True, False),
    "qwen2": ([QWEN2], False, False, True, False),
    "qwen35": ([QWEN35], False, False, False, False),
    "llama-bpe": ([LLAMA3], False, False, False, True),
    "dbrx": ([LLAMA3], False, False, False, False),
    "gpt-4o": ([O200K], False, False, False, False),
    "tekken": ([TEKKEN], False, False, False, True),
    "deepseek-coder": (DEEPSEEK_CODER, True, False, False, False),
    "deepseek-v3": (DEEPSEEK_V3, False, False, False, False),
    "exaone-moe": ([EXAONE], False, False, False, False),
    "kimi-k2": ([KIMI], False, False, False, False),
}
SAME = {"mpt": "gpt-2", "starcoder": "refact", "lfm2": "llama-bpe", "glm4": "llama-bpe", "minimax-m2": "gpt-4o",
        "hunyuan": "qwen2"}


def kept_texts(program, path):
    texts = path.with_suffix(".gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    wanted = [[int(number) for number in line.split()]
              for line in path.with_suffix(".gguf.out").read_text(encoding="utf-8").splitlines()]
    answers = compare_tokenizers.run(program, str(path), [("e", text.encode("utf-8")) for text in texts[:len(wanted)]])
    if answers is None:
        return None
    return [("e", text, w, a) for text, w, a in zip(texts, wanted, answers) if w != a]


def metadata(path):
    """Its tokenizer's keys. The gguf package takes a minute for a large vocabulary."""
    data, at = path.read_bytes(), 24  # magic, version, tensors, keys

    def take(layout):
        nonlocal at
        (value,) = struct.unpack_from("<" + layout, data, at)
        at += struct.calcsize(layout)
        return value

    def read(kind):
        nonlocal at
        if kind == gguf.GGUFValueType.ARRAY:
            kind, n = take("I"), take("Q")
            return [read(kind) for _ in range(n)]
        if kind == gguf.GGUFValueType.STRING:
            n = take("Q")
            at += n
            return data[at - n:at].decode("utf-8")
        return take("BbHhIif?..Qqd"[kind])

    keys = {read(gguf.GGUFValueType.STRING): read(take("I")) for _ in range(struct.unpack_from("<Q", data, 16)[0])}
    return {name.removeprefix("tokenizer.ggml."): value for name, value in keys.items()
            if name.startswith("tokenizer.ggml.")}


def reference(data, pre):
    """The library's tokenizer of GGUF metadata with a BPE model: over bytes, cut as `pre` says, or Gemma's."""
    kinds = data["token_type"]
    vocab = {text: i for i, text in enumerate(data["tokens"]) if kinds[i] != gguf.TokenType.UNUSED}
    merges = [tuple(merge.split(" ")) for merge in data["merges"]]
    if data["model"] == "gemma4":
        tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        patterns, digits, gpt2, nfc, whole = PIPELINES[SAME.get(pre, pre)]
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=whole))
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        steps += [pre_tokenizers.Digits(individual_digits=True)] if digits else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False,
                                                                                            use_regex=gpt2)])
        tokenizer.decoder = decoders.ByteLevel()
    for text, i in vocab.items():
        if kinds[i] in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED):
            is_control = kinds[i] == gguf.TokenType.CONTROL
            (tokenizer.add_special_tokens if is_control else tokenizer.add_tokens)(
                [AddedToken(text, normalized=False, special=is_control)])
    if data.get("add_bos_token", pre in ("llama-bpe", "lfm2", "tekken")) and "bos_token_id" in data:
        bos = data["tokens"][data["bos_token_id"]]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A",
                                                                 special_tokens=[(bos, data["bos_token_id"])])
    return tokenizer


def sentencepiece_texts(program, path, data, strings, rng, folder):
    """As random_texts, of a `llama` tokenizer: the .model that the converter read stands for it in the library."""
    made = folder / "tokenizer.model"
    proto = sentencepiece_model_pb2.ModelProto()
    unknown = data["token_type"].index(gguf.TokenType.UNKNOWN)  # the library allows one
    for i, (text, score, kind) in enumerate(zip(data["tokens"], data["scores"], data["token_type"])):
        is_other = kind == gguf.TokenType.UNKNOWN and i != unknown
        proto.pieces.add(piece=text, score=score, type=gguf.TokenType.CONTROL if is_other else kind)
    proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
    proto.trainer_spec.byte_fallback = gguf.TokenType.BYTE in data["token_type"]
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = data.get("add_space_prefix", True)
    proto.normalizer_spec.remove_extra_whitespaces = False
    made.write_bytes(proto.SerializeToString())
    found = [("e", *difference) for file in (path, made)
             for difference in compare_sentencepiece.compare(program, str(file), strings, rng, str(made))]
    return found, 2 * strings


def with_pre(data, pre, path):
    """Llama 3's vocabulary in a GGUF file that names another way of cutting."""
    writer = gguf.GGUFWriter(path, "none")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(data["tokens"])
    writer.add_token_types(data["token_type"])
    writer.add_token_merges(data["merges"])
    writer.add_bos_token_id(data["bos_token_id"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def random_texts(program, path, data, pre, strings, rng, folder):
    """Differences of the GGUF file and of the tokenizer.json with the same steps, and the number of checks."""
    tokenizer = reference(data, pre)
    made = folder / "tokenizer.json"
    tokenizer.save(str(made))
    found, n_gguf = compare_tokenizers.compare(program, str(path), strings, rng, tokenizer)
    more, n_json = compare_tokenizers.compare(program, str(made), strings, rng)
    return found + more, n_gguf + n_json


def report(number, name, differences, checks=None):
    shown = "" if checks is None else f"{checks} checks, "
    print(f"{'not ok' if differences else 'ok'} {number} - {name}: {shown}{len(differences)} differ", flush=True)
    for _, text, wanted, got in sorted(differences, key=lambda d: len(d[1]))[:3]:
        print(f"# {text!r}: {got}, expected {wanted}")
    return bool(differences)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=str(ROOT / "build/tools/tokenize"))
    parser.add_argument("--strings", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folder", nargs="?", default=os.environ.get("LLAMA_CPP_MODELS"))
    args = parser.parse_args()
    files = sorted(pathlib.Path(args.folder).glob("*.gguf.out")) if args.folder else []
    if not files:
        print("1..0 # SKIP no folder with llama.cpp's vocabularies ($LLAMA_CPP_MODELS)")
        return 77
    rng = random.Random(args.seed)
    failed = number = 0
    llama3, done = None, set()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for path in (out.with_suffix("") for out in files):
            number += 1
            differences = kept_texts(args.program, path)
            if differences is None:
                print(f"ok {number} - {path.stem} # SKIP refused")
                continue
            failed += report(number, path.stem, differences)
            data = metadata(path)
            pre = data.get("pre")
            if pre == "llama-bpe":
                llama3 = data
            if data["model"] == "llama":
                number += 1
                failed += report(number, f"{path.stem} on random texts",
                                 *sentencepiece_texts(args.program, path, data, args.strings, rng, folder))
                continue
            if data["model"] != "gemma4" and (data["model"] != "gpt2" or SAME.get(pre, pre) not in PIPELINES):
                continue
            number += 1
            done.add(pre)
            failed += report(number, f"{path.stem} on random texts",
                             *random_texts(args.program, path, data, pre, args.strings, rng, folder))
        for pre in sorted({*PIPELINES, *SAME} - done) if llama3 else []:
            number += 1
            path = folder / "vocabulary.gguf"
            with_pre(llama3, pre, path)
            failed += report(number, f"Llama 3's vocabulary cut as {pre} on random texts",
                             *random_texts(args.program, path, dict(llama3, add_bos_token=pre in ("lfm2", "tekken")), pre,
                                           args.strings, rng, folder))
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
