#!/usr/bin/env python3
"""Checks moec's greedy and beam search from outside: transformers generates the same texts.

    python3 tests/live/compare_generation.py [--moec build/moec] [--model FOLDER --data FILE] [--rows N]

Prompts are the lines of FILE; without a model both samples are compared, on beginnings of paragraphs of the one's test
text and on dialogues of the other's. `moec eval --answers`
writes the texts that moec generates under each set of options; transformers (float32, eager attention) generates from
the same prompts with the same options. Where texts differ, the prompt is generated again in float64: when that gives
moec's text, rounding decided. Such prompts are counted and must be at most one in twenty (one where there are fewer).
Exits 1 when a comparison fails, 77 where transformers is missing.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "sample"
SWITCH = ROOT / "datasets" / "switch-sample"
TOKENS = 24

# What generate() is asked for, and the options of moec that ask for it.
SETTINGS = [
    ({}, []),
    (dict(repetition_penalty=1.3), ["--repetition-penalty", "1.3"]),
    (dict(no_repeat_ngram_size=3, min_new_tokens=20), ["--no-repeat-ngram", "3", "--min-tokens", "20"]),
    (dict(num_beams=4), ["--beams", "4"]),
    (dict(num_beams=4, length_penalty=2.0, early_stopping=True),
     ["--beams", "4", "--length-penalty", "2", "--early-stopping", "true"]),
    (dict(num_beams=3, length_penalty=0.6, no_repeat_ngram_size=2),
     ["--beams", "3", "--length-penalty", "0.6", "--no-repeat-ngram", "2"]),
    (dict(num_beams=6, early_stopping="never", repetition_penalty=1.2),
     ["--beams", "6", "--early-stopping", "never", "--repetition-penalty", "1.2"]),
]

TASK = """return {
  name = "lines", metric = "rouge-l", rows = { format = "jsonl" }, prompt = "{text}", reference = "{text}",
  answer = { tokens = %d },
}
"""


class Reference:
    def __init__(self, folder):
        self.folder = folder
        self.is_pair = AutoConfig.from_pretrained(folder).is_encoder_decoder
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.models = {}
        # What stands before a text, which transformers 5 does not tell otherwise.
        self.start = self.tokenizer("a")["input_ids"]
        self.start = self.start[:self.start.index(self.tokenizer("a", add_special_tokens=False)["input_ids"][0])]

    def model(self, dtype):
        if dtype not in self.models:
            maker = AutoModelForSeq2SeqLM if self.is_pair else AutoModelForCausalLM
            self.models[dtype] = maker.from_pretrained(self.folder, dtype=dtype, attn_implementation="eager").eval()
        return self.models[dtype]

    @torch.no_grad()
    def text(self, prompt, settings, dtype):
        ids = self.start + self.tokenizer(prompt, add_special_tokens=self.is_pair)["input_ids"]
        inputs = torch.tensor([ids])
        pad = self.tokenizer.pad_token_id if self.is_pair else self.tokenizer.eos_token_id or 0
        out = self.model(dtype).generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=TOKENS,
                                         do_sample=False, pad_token_id=pad, **settings)
        return self.tokenizer.decode(out[0, 0 if self.is_pair else len(ids):], skip_special_tokens=True,
                                     clean_up_tokenization_spaces=False)


def compare(moec, reference, rows, settings, options, folder):
    answers = folder / "answers.jsonl"
    subprocess.run([moec, "eval", reference.folder, "--task", folder / "lines.lua", "--data", folder / "lines.jsonl",
                    "--answers", answers, "--force", "--quiet", *options], check=True, stdout=subprocess.DEVNULL)
    ours = [json.loads(line)["text"] for line in answers.read_text(encoding="utf-8").splitlines()]
    wrong, rounded = 0, 0
    for prompt, text in zip(rows, ours):
        theirs = reference.text(prompt, settings, torch.float32)
        if theirs == text:
            continue
        if reference.text(prompt, settings, torch.float64) == text:
            rounded += 1
            continue
        wrong += 1
        print(f"# {prompt!r}\n#   transformers {theirs!r}\n#   moec         {text!r}")
    good = wrong == 0 and rounded * 20 <= max(len(rows), 20)
    print(f"{'ok' if good else 'FAILED'} {' '.join(options) or 'greedy'}: {len(rows)} texts, {wrong} differ, "
          f"{rounded} by rounding", flush=True)
    return good


def sample_prompts(model):
    if model == SWITCH / "model":
        lines = (SWITCH / "test.jsonl").read_text(encoding="utf-8").splitlines()
        return ["summarize: " + json.loads(line)["dialogue"] for line in lines]
    paragraphs = (SAMPLE / "test.txt").read_text(encoding="utf-8").split("\n\n")
    return [" ".join(paragraph.split()[:9]) for paragraph in paragraphs if len(paragraph) > 200]


def compare_all(moec, model, rows):
    reference = Reference(model)
    good = True
    with tempfile.TemporaryDirectory(prefix="moec-generation-") as temporary:
        folder = pathlib.Path(temporary)
        (folder / "lines.lua").write_text(TASK % TOKENS)
        (folder / "lines.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
        for settings, flags in SETTINGS:
            good = compare(moec, reference, rows, settings, flags, folder) and good
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=5)
    options = parser.parse_args()
    disable_progress_bar()
    if bool(options.model) != bool(options.data):
        parser.error("give a model with its prompts")
    good = True
    for model in [options.model] if options.model else [SAMPLE / "model", SWITCH / "model"]:
        rows = options.data.read_text(encoding="utf-8").splitlines() if options.data else sample_prompts(model)
        rows = [row for row in rows if row.strip()][:options.rows]
        print(f"# {model}")
        good = compare_all(options.moec, model, rows) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
