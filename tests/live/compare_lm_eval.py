#!/usr/bin/env python3
"""Checks the tasks of the papers against lm-evaluation-harness 0.4.13: its own prompts, choices and likelihoods.

    python3 tests/live/compare_lm_eval.py [--moec build/moec] [--rows 200] [TASK DATA]...

Without pairs, rows of every task are made of the sample's test text. With pairs, DATA is a file of the task's data, in
any form that moec reads. moec scores the file as it is; the harness scores the same rows in the form of the Hub, by its
own task files and its `hf` model in float32, on models of three families. A log-likelihood may differ by 1e-4 of itself,
or by 1e-3 where it is small. The choice must be the same wherever the harness's margin exceeds 1e-4; others are listed, as
are texts in which two experts are so close for a router that rounding decides.
Exits 1 when a comparison fails, 77 where lm_eval, torch or transformers is missing.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import lm_eval
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "sample"
TASK_FILES = {
    "arc": "arc/arc_easy.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "sciq": "sciq/sciq.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "truthfulqa-mc1": "truthfulqa/truthfulqa_mc1.yaml",
    "truthfulqa-mc2": "truthfulqa/truthfulqa_mc2.yaml",
}


# ---- rows in the form of the Hub ----

def question(row):
    """Question, choices and place of the right one of an instruction."""
    text, choices = re.match(r"Please choose the correct answer to the question: (.*?)\n\nAnswer1: (.*)\n\nAnswer format: ",
                             row["instruction"], re.S).groups()
    return text, re.split(r" Answer\d: ", choices), int(row["answer"][-1]) - 1


def with_labels(row, name):
    if name in row:
        return row
    text, choices, place = question(row)
    labels = "ABCDE"[:len(choices)]
    return {name: text, "choices": {"text": choices, "label": list(labels)}, "answerKey": labels[place]}


def sciq(row):
    if "question" in row:
        return row
    text, support, listed = re.match(
        r"Q: (.*?)\n\n\nRead this paragraph and choose the correct option from the provided answers:\n\n(.*)\n\n Choices:\n\n(.*?)\n\n\nA:\n$",
        row["prompt"], re.S).groups()
    right = row["completion"].removesuffix("<|endoftext|>")
    wrong = [c for c in dict.fromkeys(listed.removeprefix("- ").split("\n\n- ")) if c != right]
    return {"question": text, "support": support, "correct_answer": right,
            **{f"distractor{i + 1}": c for i, c in enumerate(wrong)}}


def winogrande(row):
    if "sentence" in row:
        return row
    sentence, one, two = re.match(r".*?the given sentence: (.*)\n\nOption1: (.*) Option2: (.*) Answer format", row["instruction"],
                                  re.S).groups()
    return {"sentence": sentence, "option1": one, "option2": two, "answer": row["answer"][-1]}


def answers(text):
    return [a if a.endswith(".") else a + "." for a in (a.strip() for a in text.split(";")) if a]


def truthfulqa(row):
    if "mc1_targets" in row:
        return row
    best, true, false = answers(row["Best Answer"]), answers(row["Correct Answers"]), answers(row["Incorrect Answers"])
    return {"question": row["Question"],
            "mc1_targets": {"choices": best + false, "labels": [1] * len(best) + [0] * len(false)},
            "mc2_targets": {"choices": true + false, "labels": [1] * len(true) + [0] * len(false)}}


def boolq(row):
    """A question without its passage has an empty one, for the harness always writes the passage's line."""
    if "passage" in row:
        return row
    text = re.match(r"Please answer the following question with true or false, question: (.*?)\n\nAnswer format: ",
                    row["instruction"], re.S).group(1)
    return {"passage": "", "question": text, "label": int(row["answer"] == "true")}


HUB = {
    "arc": lambda r: with_labels(r, "question"),
    "openbookqa": lambda r: with_labels(r, "question_stem"),
    "boolq": boolq,
    "sciq": sciq,
    "winogrande": winogrande,
    "truthfulqa-mc1": truthfulqa,
    "truthfulqa-mc2": truthfulqa,
}


def made(folder, n):
    """Rows of every task from the sample's own kind of text, so that its likelihoods mean something."""
    words = (SAMPLE / "test.txt").read_text(encoding="utf-8").split()
    texts = [" ".join(words[i * 24:i * 24 + 24]).replace("_", "-") for i in range(5 * n)]
    part = lambda i, k, first, last: " ".join(texts[5 * i + k].split()[first:last])
    choices = lambda i: [part(i, k, 12, 15 + (i + k) % 4) for k in range(4)]
    rows = {task: [] for task in TASK_FILES}
    for i in range(n):
        labelled = {"choices": {"text": choices(i), "label": list("ABCD")}, "answerKey": "ABCD"[i % 4]}
        rows["arc"].append({"question": part(i, 0, 0, 12) + "?", **labelled})
        rows["openbookqa"].append({"question_stem": part(i, 0, 0, 12), **labelled})
        rows["boolq"].append({"passage": texts[5 * i], "question": part(i, 1, 0, 6), "label": i % 2})
        rows["sciq"].append({"question": part(i, 0, 0, 8) + "?", "support": " " + texts[5 * i], "correct_answer": part(i, 1, 0, 2),
                             **{f"distractor{k}": part(i, k + 1, 0, 2) for k in (1, 2, 3)}})
        rows["winogrande"].append({"sentence": part(i, 0, 0, 8) + " _ " + part(i, 0, 10, 20) + ".", "option1": part(i, 1, 0, 1),
                                   "option2": part(i, 2, 0, 2), "answer": str(1 + i % 2)})
        targets = {"choices": [c + "." for c in choices(i)], "labels": [1, 0, 0, 0]}
        truth = {"question": part(i, 0, 0, 10) + "?", "mc1_targets": targets,
                 "mc2_targets": {**targets, "labels": [1, 1, 0, 0]}}
        rows["truthfulqa-mc1"].append(truth)
        rows["truthfulqa-mc2"].append(truth)
    pairs = []
    for task, of_task in rows.items():
        path = folder / f"made-{task}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in of_task), encoding="utf-8")
        pairs.append((task, path))
    return pairs


def read_rows(path):
    text = (subprocess.run(["zstdcat", path], stdout=subprocess.PIPE, check=True).stdout if path.suffix == ".zst"
            else path.read_bytes()).decode("utf-8")
    name = path.name.removesuffix(".zst")
    if name.endswith(".csv"):
        return list(csv.DictReader(text.splitlines(True)))
    return json.loads(text) if name.endswith(".json") else [json.loads(line) for line in text.split("\n") if line.strip()]


def head(path, rows, folder):
    """The rows as a file of the data's own form."""
    name = path.name.removesuffix(".zst")
    out = folder / f"head-{name}"
    with open(out, "w", encoding="utf-8", newline="") as f:
        if name.endswith(".csv"):
            writer = csv.DictWriter(f, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        elif name.endswith(".json"):
            json.dump(rows, f, ensure_ascii=False)
        else:
            f.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return out


# ---- models ----

def tiny(folder):
    """The sample, and two small models of other families with its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(SAMPLE / "model")
    shape = {"vocab_size": len(tokenizer), "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 4096,
             "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    yield "OLMoE (the sample)", SAMPLE / "model"
    for name, config in (("Mixtral", transformers.MixtralConfig(**shape, num_local_experts=6, num_experts_per_tok=2)),
                         ("Qwen2-MoE", transformers.Qwen2MoeConfig(**shape, num_experts=6, num_experts_per_tok=2,
                                                                   moe_intermediate_size=48,
                                                                   shared_expert_intermediate_size=64))):
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2) # so that choices differ
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        yield name, folder / name


def router_gap(model, text):
    """The least gap between the last expert that a token takes and the next one, of the router's range."""
    ids = torch.tensor([model.tok_encode(text)])
    with torch.no_grad():
        logits = model.model(ids, output_router_logits=True).router_logits
    k = model.model.config.num_experts_per_tok
    ranked = [layer.sort(-1, descending=True).values for layer in logits]
    return min(((layer[:, k - 1] - layer[:, k]) / (layer[:, 0] - layer[:, -1])).min().item() for layer in ranked)


# ---- both ----

def can_ask(task, row):
    """The harness needs four choices of SciQ, which a few rows of T0 do not have."""
    return task != "sciq" or "distractor3" in HUB[task](row)


def harness(model, task, rows, folder):
    """Log-likelihoods of each row's choices, and the task's own scores."""
    path = folder / f"{task}.jsonl"
    path.write_text("".join(json.dumps(HUB[task](row)) + "\n" for row in rows), encoding="utf-8")
    base = pathlib.Path(lm_eval.__file__).parent / "tasks" / TASK_FILES[task]
    name = "moec_" + task.replace("-", "_")
    (folder / f"{name}.yaml").write_text(
        f"include: {base}\ntask: {name}\ntag: null\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs:\n  data_files:\n    test: {path}\ntraining_split: null\nvalidation_split: null\ntest_split: test\n"
        "fewshot_split: test\nnum_fewshot: 0\n", encoding="utf-8")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    result = lm_eval.simple_evaluate(model=model, tasks=[name], task_manager=manager, log_samples=True, bootstrap_iters=0,
                                     cache_requests=False, verbosity="ERROR")
    samples = sorted(result["samples"][name], key=lambda s: s["doc_id"])
    return [[float(r[0]) for r in s["filtered_resps"]] for s in samples], samples, result["results"][name]


def compare(moec, folder, checkpoint, model, task, path, n):
    rows = [row for row in read_rows(path) if can_ask(task, row)][:n]
    if task == "boolq":
        rows = [boolq(row) for row in rows] # moec leaves out the line of a passage that the data lacks
    data, out = head(path, rows, folder), folder / "answers.jsonl"
    done = subprocess.run([moec, "eval", checkpoint, "--task", task, "--data", data, "--answers", out, "--force", "--json",
                           "--quiet"], check=True, capture_output=True)
    ours = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    theirs, samples, scores = harness(model, task, rows, folder)
    bad, largest, n_scored, n_close = 0, 0.0, 0, 0
    for i, (got, expected) in enumerate(zip(ours, theirs, strict=True)):
        mine = [c["log_likelihood"] for c in got["choices"]]
        for a, b in zip(mine, expected, strict=True):
            n_scored += 1
            largest = max(largest, abs(a - b) / max(1, abs(b)))
            if abs(a - b) > max(1e-4 * abs(b), 1e-3):
                gap = router_gap(model, "".join(samples[i]["arguments"][expected.index(b)][:2]))
                n_close += gap < 1e-4
                bad += gap >= 1e-4
                print(f"# row {i + 1}: lm-eval {b}, moec {a}, least gap of a router {gap:.1e}")
        margin = sorted(expected)[-1] - sorted(expected)[-2]
        if mine.index(max(mine)) != expected.index(max(expected)):
            n_close += margin <= 1e-4
            bad += margin > 1e-4
            print(f"# row {i + 1}: another choice, the margin is {margin:.1e}")
    value = json.loads(done.stdout)["value"]
    score = scores["acc,none"]
    if abs(value - score) > 1e-4 and n_close == 0:
        bad += 1
        print(f"# lm-eval's score is {score}, moec's {value}")
    print(f"{'ok' if bad == 0 else 'FAILED'} {task} on {path.name}, {len(rows)} rows: {n_scored} likelihoods, largest relative "
          f"difference {largest:.1e}, score {score:.4f} and {value:.4f}, {n_close} too close to tell", flush=True)
    return bad == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("pairs", nargs="*", metavar="TASK DATA")
    options = parser.parse_args()
    if len(options.pairs) % 2:
        parser.error("give each task with its data")
    good = True
    with tempfile.TemporaryDirectory(prefix="moec-lm-eval-") as temporary:
        folder = pathlib.Path(temporary)
        given = list(zip(options.pairs[::2], map(pathlib.Path, options.pairs[1::2])))
        for name, path in tiny(folder):
            print(f"# {name}", flush=True)
            model = HFLM(pretrained=str(path), dtype="float32", device="cpu", batch_size=8, max_length=2048,
                         attn_implementation="eager", add_bos_token=has_start(path))
            for task, data in given or made(folder, options.rows):
                good = compare(options.moec, folder, path, model, task, data, options.rows) and good
    return 0 if good else 1


def has_start(path):
    """Whether the tokenizer puts something before a text, which moec always does then."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    return tokenizer("a")["input_ids"] != tokenizer("a", add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    sys.exit(main())
