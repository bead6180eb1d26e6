#!/usr/bin/env python3
"""Checks moec serve by the clients that others use: PyPI's openai, lm-evaluation-harness, and the page in Chromium.

    python3 tests/live/compare_serve.py [--moec build/moec] [--rows N]

A bundle of the sample with a chat template is served. Texts that the openai client gets, whole and as streams, must be
those of moec run; errors must name their field. lm_eval (its model local-completions, with the server's tokenizer)
scores choices: each log-likelihood must be that of `moec eval` within 1e-4, for the bundle as it is, with decisions
about every token on both sides, and for a bundle with settings of its own that the server scores as decided. The page must show the model's name, which its script asks for. Exits 1 when
a comparison fails, 77 where openai or lm_eval is missing.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
try:
    import lm_eval
    import openai
    from lm_eval.tasks import TaskManager
except ImportError as missing:
    print(f"1..0 # SKIP {missing}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "datasets" / "sample"
TASK = """task: endings
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{activity_label}}}}: {{{{ctx}}}}"
doc_to_choice: "{{{{endings}}}}"
doc_to_target: "{{{{label}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
failures = 0


def check(holds, what):
    global failures
    failures += not holds
    print(f"{'ok' if holds else 'FAILED'} {what}", flush=True)


def make_bundle(moec, folder):
    model = folder / "model"
    shutil.copytree(SAMPLE / "model", model)
    shutil.copy(ROOT / "tests/fixtures/chat/chatml.jinja", model / "chat_template.jinja")
    bundle = folder / "sample.moec"
    subprocess.run([moec, "compile", model, "--policy", "uniform", "--bits", "4", "-q", "-o", bundle], check=True,
                   stdout=subprocess.DEVNULL)
    return bundle


def make_rows(folder, n):
    """Rows whose choices are other ends of other texts."""
    paragraphs = [p for p in (SAMPLE / "test.txt").read_text(encoding="utf-8").split("\n\n") if len(p) > 200]
    path = folder / "endings.jsonl"
    with open(path, "w", encoding="utf-8") as f:
        for i in range(n):
            words = paragraphs[i].split()
            endings = [" ".join(paragraphs[(i + k) % len(paragraphs)].split()[12:18]) for k in (0, 1, 2)]
            endings = endings[i % 3:] + endings[:i % 3]
            f.write(json.dumps({"activity_label": "Text", "ctx": " ".join(words[:12]), "endings": endings,
                                "label": endings.index(" ".join(words[12:18]))}) + "\n")
    return path


@contextlib.contextmanager
def served(moec, bundle, *options):
    server = subprocess.Popen([moec, "serve", bundle, "--port", "0", "--sessions", "4", *options], stdout=subprocess.PIPE,
                              text=True)
    try:
        yield re.search(r"(http://[^,]*),", server.stdout.readline()).group(1)
    finally:
        server.terminate()
        check(server.wait(60) == 0, "the server ends")


def run(moec, bundle, *options):
    done = subprocess.run([moec, "run", bundle, *options], check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8")[:-1]


def compare_openai(moec, bundle, url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none")
    check([m.id for m in client.models.list()] == ["sample"], "openai lists the model")
    for seed, temperature in ((0, 0), (5, 0.9)):
        how = dict(model="sample", max_tokens=30, temperature=temperature, seed=seed)
        options = ["-n", "30", "--temp", str(temperature), "--seed", str(seed)]
        expected = run(moec, bundle, "-p", "Once upon a time", *options)
        whole = client.completions.create(prompt="Once upon a time", **how)
        parts = [e.choices[0].text for e in client.completions.create(prompt="Once upon a time", stream=True, **how)]
        check(whole.choices[0].text == expected == "".join(parts), f"openai's completion, temperature {temperature}")
        messages = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hello"}]
        expected = run(moec, bundle, "--chat", "--system", "Be kind", "-p", "Hello", *options)
        whole = client.chat.completions.create(messages=messages, **how)
        parts = [e.choices[0].delta.content or "" for e in client.chat.completions.create(messages=messages, stream=True,
                                                                                           **how)]
        check(whole.choices[0].message.content == expected == "".join(parts), f"its conversation, {temperature}")
        check(whole.usage.completion_tokens <= 30 and whole.usage.prompt_tokens > 20, "its usage")
    for what, call in (("tools", lambda: client.chat.completions.create(
                            model="m", messages=[{"role": "user", "content": "a"}],
                            tools=[{"type": "function", "function": {"name": "f"}}])),
                       ("nonsense", lambda: client.completions.create(model="m", prompt="a", extra_body={"nonsense": 1}))):
        try:
            call()
            check(False, f"'{what}' is refused")
        except openai.BadRequestError as error:
            check(error.param == what, f"'{what}' is refused by its name")


def compare_harness(moec, bundle, folder, data, url, *options):
    answers = folder / "answers.jsonl"
    done = subprocess.run([moec, "eval", bundle, "--task", "hellaswag", "--data", data, "--answers", answers, "--force",
                           "--json", "--quiet", *options], check=True, capture_output=True)
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / "endings.yaml").write_text(TASK.format(data=data))
    found = lm_eval.simple_evaluate(
        model="local-completions", tasks=["endings"], task_manager=TaskManager(include_path=str(folder / "tasks")),
        model_args=f"base_url={url}/v1/completions,model=sample,tokenizer_backend=remote,max_length=1024,num_concurrent=2",
        log_samples=True, batch_size=3, bootstrap_iters=0)
    largest, n = 0.0, 0
    ours = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    for sample in found["samples"]["endings"]:
        for choice, answer in zip(ours[sample["doc_id"]]["choices"], sample["filtered_resps"]):
            largest = max(largest, abs(choice["log_likelihood"] - float(answer[0])))
            n += 1
    accuracy = found["results"]["endings"]["acc,none"]
    check(n > 0 and largest <= 1e-4, f"lm_eval {lm_eval.__version__}: {n} log-likelihoods, largest difference {largest:.1e}")
    value = json.loads(done.stdout)["scores"]["accuracy"]
    check(abs(accuracy - value) < 1e-9, f"its accuracy {accuracy:.4f} is that of moec eval, {value:.4f}")
    return [choice["log_likelihood"] for row in ours for choice in row["choices"]]


def look_at_page(url):
    browser = shutil.which("chromium")
    if browser is None:
        print("skipped: the page, for want of chromium")
        return
    done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
                           url + "/"], capture_output=True, text=True, timeout=120)
    check('<p id="model">sample</p>' in done.stdout, "the page in Chromium shows the model")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moec", default=str(ROOT / "build" / "moec"))
    parser.add_argument("--rows", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moec-serve-") as temporary:
        folder = pathlib.Path(temporary)
        bundle, data = make_bundle(options.moec, folder), make_rows(folder, options.rows)
        with served(options.moec, bundle, "--memory", "96MiB") as url:
            compare_openai(options.moec, bundle, url)
            plain = compare_harness(options.moec, bundle, folder, data, url)
            look_at_page(url)
        route = ["--route", "cache-prior:0.3", "--slots", "50%"]
        with served(options.moec, bundle, *route) as url:
            compare_harness(options.moec, bundle, folder, data, url, *route)
        fitted = folder / "fitted.moec"
        subprocess.run([options.moec, "tune", bundle, "--reference", folder / "model", "--data",
                        SAMPLE / "calibration.txt", "--samples", "128", "--max-loss", "30%", "-q", "-o", fitted],
                       check=True, stdout=subprocess.DEVNULL)
        with served(options.moec, fitted, "--score", "decided", "--model-name", "sample") as url:
            decided = compare_harness(options.moec, fitted, folder, data, url, "--decide", "all")
        check(decided != plain, "its settings decide")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
