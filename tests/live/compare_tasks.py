#!/usr/bin/env python3
"""Checks moec's generation and likelihoods on the rows of a task from outside: transformers does the same.

    python3 tests/live/compare_tasks.py [--moec build/moec] [--model FOLDER] [--rows N] [TASK DATA]...

Without pairs: choices and continuations made of the sample's test text. `moec eval --answers` writes the model's text
or the log-likelihood of every choice; transformers (float32, eager attention) reads the same prompts, rendered here
from the data by the few built-in templates that a pair may name (hellaswag, piqa, mmlu, samsum, dialogsum). Texts must be
equal; a log-likelihood may differ by 1e-4 of itself, or by 1e-3 where it is small. Exits 1 when a comparison
fails, 77 where transformers is missing.
"""

import argparse
import csv
import json
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
CONTEXT = 2048


def letters(row):
    return "".join(f"{chr(65 + i)}. {c}\n" for i, c in enumerate(row["choices"]))


PROMPTS = {
    "hellaswag": lambda r: f"{r['activity_label']}: {r['ctx']}",
    "piqa": lambda r: f"Question: {r['goal']}\nAnswer:",
    "mmlu": lambda r: f"The following is a multiple choice question (with answer) about {r['subject']}.\n\n"
                      f"{r['question']}\n{letters(r)}Answer:",
    "samsum": lambda r: f"Dialogue:\n{r['dialogue']}\n\nSummary:",
    "dialogsum": lambda r: f"Dialogue:\n{r['dialogue']}\n\nSummary:",
}
CHOICES = {
    "hellaswag": lambda r: [" " + e for e in r["endings"]],
    "piqa": lambda r: [" " + r["sol1"], " " + r["sol2"]],
    "mmlu": lambda r: [" " + chr(65 + i) for i in range(len(r["choices"]))],
}
TOKENS = 64
STOP = "\n"


def made(folder):
    """Rows from the sample's own kind of text, so that its likelihoods and its text mean something."""
    paragraphs = [p for p in (SAMPLE / "test.txt").read_text(encoding="utf-8").split("\n\n") if len(p) > 200]
    with open(folder / "endings.jsonl", "w", encoding="utf-8") as f:
        for i in range(0, 60, 3):
            words = paragraphs[i].split()
            endings = [" ".join(paragraphs[i + k].split()[12:24]) for k in (0, 1, 2)]
            f.write(json.dumps({"activity_label": "Text", "ctx": " ".join(words[:12]), "endings": endings, "label": 0}) + "\n")
    with open(folder / "dialogues.csv", "w", encoding="utf-8", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["id", "summary", "dialogue"])
        for i, paragraph in enumerate(paragraphs[:20]):
            writer.writerow([i, paragraph.split("\n")[0], paragraph])
    return [("hellaswag", folder / "endings.jsonl"), ("samsum", folder / "dialogues.csv")]


def read_rows(path):
    if path.suffix == ".csv":
        with open(path, encoding="utf-8", newline="") as f:
            return list(csv.DictReader(f))
    if path.suffix == ".zst":
        text = subprocess.run(["zstdcat", path], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8")
    else:
        text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def own_rows(path, rows, n, folder):
    """The first n rows as a file of their own, with their labels where the data has them beside it."""
    head = folder / ("head.csv" if path.suffix == ".csv" else "head.jsonl")
    with open(head, "w", encoding="utf-8", newline="") as f:
        if path.suffix == ".csv":
            writer = csv.DictWriter(f, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows[:n])
        else:
            f.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[:n])
    labels = path.with_name(path.name.split(".")[0] + "-labels.lst")
    if labels.exists():
        (folder / "head-labels.lst").write_text("".join(labels.read_text().splitlines(True)[:n]))
    return head


class Reference:
    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.context = min(CONTEXT, self.model.config.max_position_embeddings)
        # What stands before a text, which transformers 5 does not tell otherwise.
        self.start = self.tokenizer("a")["input_ids"]
        self.start = self.start[:self.start.index(self.tokenizer("a", add_special_tokens=False)["input_ids"][0])]

    def ids(self, text):
        return self.start + self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def likelihood(self, prompt, choice):
        alone, whole = self.ids(prompt), self.ids(prompt + choice)
        first = 0
        while first < len(alone) and first + 1 < len(whole) and alone[first] == whole[first]:
            first += 1
        logits = self.model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
        return sum(logits[i - 1, whole[i]].item() for i in range(first, len(whole)))

    @torch.no_grad()
    def text(self, prompt):
        ids = self.ids(prompt)[-(self.context - TOKENS + 1):]
        out = self.model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False,
                                  pad_token_id=self.tokenizer.eos_token_id or 0)[0, len(ids):]
        return self.tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False).split(STOP)[0]


def compare(moec, model, reference, task, path, n, folder):
    rows = read_rows(path)[:n]
    data = own_rows(path, rows, n, folder)
    answers = folder / "answers.jsonl"
    done = subprocess.run([moec, "eval", model, "--task", task, "--data", data, "--answers", answers, "--force", "--json",
                           "--quiet"],
                          check=True, capture_output=True)
    ours = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    value = json.loads(done.stdout)["value"]
    differ, largest, scores = 0, 0.0, 0
    for row, answer in zip(rows, ours):
        prompt = PROMPTS[task](row)
        if task not in CHOICES:
            theirs = reference.text(prompt)
            if theirs != answer["text"]:
                differ += 1
                print(f"# {theirs!r}\n# {answer['text']!r}")
            continue
        for choice, got in zip(CHOICES[task](row), answer["choices"]):
            theirs = reference.likelihood(prompt, choice)
            off = abs(theirs - got["log_likelihood"])
            largest = max(largest, off / max(1, abs(theirs)))
            scores += 1
            if off > max(1e-4 * abs(theirs), 1e-3):
                differ += 1
                print(f"# {choice!r}: transformers {theirs}, moec {got['log_likelihood']}")
    what = f"{scores} likelihoods, largest relative difference {largest:.1e}" if task in CHOICES else f"{len(rows)} texts"
    print(f"{'ok' if differ == 0 else 'FAILED'} {task} on {path.name}: {what}, {differ} differ, value {value:.4f}", flush=True)
    return differ == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--model", type=pathlib.Path, default=SAMPLE / "model")
    parser.add_argument("--rows", type=int, default=5)
    parser.add_argument("pairs", nargs="*", metavar="TASK DATA")
    options = parser.parse_args()
    disable_progress_bar()
    if len(options.pairs) % 2:
        parser.error("give each task with its data")
    reference = Reference(options.model)
    good = True
    with tempfile.TemporaryDirectory(prefix="moec-tasks-") as temporary:
        folder = pathlib.Path(temporary)
        pairs = list(zip(options.pairs[::2], map(pathlib.Path, options.pairs[1::2])))
        for task, path in pairs or made(folder):
            good = compare(options.moec, options.model, reference, task, path, options.rows, folder) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
