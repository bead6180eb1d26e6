#!/usr/bin/env python3
"""Trains the Switch Transformers sample and writes datasets/switch-sample.

    python3 datasets/scripts/train_switch_sample.py     (needs torch, transformers<5, tokenizers, sentencepiece,
                                                         safetensors, rouge-score; two hours on one core)

The text comes from make_dialogues.py. The Unigram tokenizer is of T5's kind, its character map that of the tests'
fixtures. The model is transformers' own; only its sparse layers run in another order while it learns (each expert once,
on its tokens together, padding left out), without capacity. Training can be interrupted: --state keeps everything, and
the same command goes on from there.
"""

import argparse
import copy
import io
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import sentencepiece as spm
import torch
from rouge_score import rouge_scorer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, SwitchTransformersConfig, SwitchTransformersForConditionalGeneration
from transformers.models.switch_transformers.modeling_switch_transformers import SwitchTransformersSparseMLP

import make_dialogues

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT.parent / "tests" / "fixtures"))
import make_tokenizers  # noqa: E402  (a script beside the tests, not a package)

VOCABULARY, SUBWORDS, OTHER_PIECES = 768, 400, 4.0
TRAIN_ROWS = 60000
HELD_OUT_ROWS = 640
BATCH = 32
WARM_UP, STATE_EVERY = 100, 100
# Phases by their first step: the highest learning rate, from which it falls to zero, and the weight decay. Strong decay
# takes away what is left of the random beginning, so that the weights that stay are those that matter.
PHASES = {0: (2e-3, 0.05), 2200: (1.5e-3, 1.0)}
BALANCE = {0: 0.01, 800: 0.001}  # from a step on: first all experts learn, then some may be asked more often


# Text ----------------------------------------------------------------------------------------------------------------

def prompt_of(row):
    """Returns what the encoder reads."""
    return "summarize: " + row["dialogue"]


def train_tokenizer(texts):
    """Trains a Unigram model with SentencePiece and shapes it like T5's fast tokenizer.

    All words of the corpus are pieces too: it has so few of them that the training would cut some of the most frequent.
    """
    model, words = io.BytesIO(), Counter()
    for text in texts:
        words.update("▁" + word for word in re.findall(r"(?<!\S)[A-Za-z]+", text))
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        make_tokenizers.write_rules(rules)
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=SUBWORDS, hard_vocab_limit=False, pad_id=0,
            eos_id=1, unk_id=2, bos_id=-1, normalization_rule_tsv=rules, num_threads=1, minloglevel=2,
            required_chars="".join(chr(code) for code in range(33, 127)), max_sentencepiece_length=16)
    pieces = spm.SentencePieceProcessor(model_proto=model.getvalue())
    scores = {pieces.id_to_piece(number): pieces.get_score(number) for number in range(3)}
    scores |= {word: math.log(count / words.total()) for word, count in sorted(words.items())}
    scores |= {piece: pieces.get_score(number) - OTHER_PIECES * len(piece)
               for number, piece in enumerate(pieces.id_to_piece(list(range(len(pieces))))) if piece not in scores}
    if len(scores) > VOCABULARY:
        raise SystemExit(f"the tokenizer has {len(scores)} pieces, more than {VOCABULARY}")
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=2))
    tokenizer.normalizer = normalizers.Precompiled(make_tokenizers.precompiled_charsmap(model.getvalue()))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                             special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
                                   model_max_length=512)


def batch_of(rows, generator):
    """Draws rows of similar length: BATCH of a sorted sample of four times as many."""
    drawn = sorted(generator.sample(rows, 4 * BATCH), key=lambda row: len(row[0]))
    first = generator.randrange(4) * BATCH
    chosen = drawn[first:first + BATCH]
    sources, targets = ([torch.tensor(row[side]) for row in chosen] for side in (0, 1))
    return (torch.nn.utils.rnn.pad_sequence(sources, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100))


# Model ---------------------------------------------------------------------------------------------------------------

def configuration():
    """Returns the shape: three blocks in the encoder and three in the decoder, all of them sparse."""
    return SwitchTransformersConfig(
        vocab_size=VOCABULARY, d_model=128, d_kv=32, num_heads=4, d_ff=320, num_layers=3, num_sparse_encoder_layers=3,
        num_decoder_layers=3, num_sparse_decoder_layers=3, num_experts=8, expert_capacity=64, router_jitter_noise=0.0,
        dropout_rate=0.0, decoder_start_token_id=0, tie_word_embeddings=True, router_bias=False)


class Dispatch:
    """Runs the sparse layers for training: keeps what the balance loss needs, and leaves padding out."""

    def __init__(self):
        self.keep, self.routings = {}, []

    def forward(self, layer, hidden):
        """Replaces SwitchTransformersSparseMLP.forward."""
        keep = self.keep[layer.is_decoder]
        tokens = hidden.reshape(-1, hidden.shape[-1])[keep]
        logits = layer.router.classifier(tokens)
        chances = logits.softmax(-1)
        weight, expert = chances.max(-1)
        order = expert.argsort()
        counts = expert.bincount(minlength=layer.router.num_experts)
        parts = tokens[order].split(counts.tolist())
        results = [layer.experts[f"expert_{number}"](part) for number, part in enumerate(parts)]
        result = torch.zeros_like(tokens).index_copy(0, order, torch.cat(results)) * weight[:, None]
        self.routings.append((counts / counts.sum(), chances.mean(0)))
        back = torch.zeros_like(hidden).reshape(-1, hidden.shape[-1]).index_copy(0, keep, result)
        return back.reshape(hidden.shape), (logits[None], expert[None])

    def install(self, model):
        """Puts this in the place of the sparse layers' own forward, in this model only."""
        for name, module in model.named_modules():
            if isinstance(module, SwitchTransformersSparseMLP):
                module.is_decoder = name.startswith("decoder")
                module.forward = lambda hidden, module=module: self.forward(module, hidden)

    def begin(self, source, target):
        """Prepares one batch."""
        self.routings = []
        self.keep = {False: (source.flatten() != 0).nonzero().flatten(),
                     True: (target.flatten() != -100).nonzero().flatten()}

    def balance(self):
        """Returns the load-balancing loss of all sparse layers: experts x sum of share x mean probability."""
        return sum(len(share) * (share * chance).sum() for share, chance in self.routings)


def new_model():
    """Makes the untrained model; routers begin almost undecided."""
    model = SwitchTransformersForConditionalGeneration(configuration())
    for name, weight in model.named_parameters():
        if "router" in name:
            weight.data.mul_(0.02)
    return model


def phase_of(step, steps):
    """Returns the learning rate of a step, which rises in WARM_UP steps and falls in a straight line to zero within its
    phase, and the phase's weight decay."""
    first = max(start for start in PHASES if start <= step)
    last = min((start for start in PHASES if start > step), default=steps)
    rate, decay = PHASES[first]
    return rate * min((step - first + 1) / WARM_UP, (last - step) / (last - first - WARM_UP)), decay


def balance_weight(step):
    """Returns the weight of the load-balancing loss of each layer."""
    return BALANCE[max(first for first in BALANCE if first <= step)]


def train(model, rows, options):
    """Trains the model, or goes on with it, until the last step."""
    named = dict(model.named_parameters())
    decayed = [name for name in named if named[name].dim() > 1 and not re.search("router|shared|relative", name)]
    optimizer = torch.optim.AdamW([{"params": [named[name] for name in decayed]},
                                   {"params": [named[name] for name in named if name not in decayed], "weight_decay": 0.0}],
                                  betas=(0.9, 0.98), eps=1e-9, foreach=True)
    first, average, dispatch = 0, None, Dispatch()
    if options.state.exists():
        state = torch.load(options.state)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, average = state["step"], state["average"]
    dispatch.install(model)
    model.train()
    begun = time.time()
    for step in range(first, options.steps):
        source, target = batch_of(rows, random.Random(f"{options.seed} {step}"))
        dispatch.begin(source, target)
        rate, decay = phase_of(step, options.steps)
        for group, part in zip(optimizer.param_groups, (decay, 0.0)):
            group["lr"], group["weight_decay"] = rate, part
        loss = model(input_ids=source, attention_mask=(source != 0).long(), labels=target).loss
        balance = dispatch.balance()
        (loss + balance_weight(step) * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % 20 == 19:
            print(f"step {step + 1}/{options.steps} loss {average:.4f} balance {balance.item() / len(dispatch.routings):.2f} "
                  f"time {time.time() - begun:.0f} s, of the processor {time.process_time():.0f} s", flush=True)
        if (step + 1) % STATE_EVERY == 0 or step + 1 == options.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "average": average}
            torch.save(state, f"{options.state}.new")
            os.replace(f"{options.state}.new", options.state)


def save_checkpoint(model, tokenizer, folder):
    """Writes the folder file by file, weights in BF16 and the generation settings beside them."""
    model.generation_config.update(decoder_start_token_id=0, eos_token_id=1, pad_token_id=0, max_new_tokens=48)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in Path(temporary).iterdir():
            os.chmod(file, 0o644)
            os.replace(file, folder / file.name)


# Evaluation ----------------------------------------------------------------------------------------------------------

def quantised(model, bits):
    """Returns a copy whose experts went through symmetric quantisation with one scale per output channel."""
    model, top = copy.deepcopy(model), 2 ** (bits - 1) - 1
    for name, weight in model.named_parameters():
        if ".experts." in name:
            scale = (weight.data.abs().amax(1, keepdim=True) / top).half().float()
            weight.data.copy_((weight.data / scale).round().clamp(-top - 1, top) * scale)
    return model


@torch.no_grad()
def summaries(model, tokenizer, rows):
    """Summarises greedily, in batches of similar length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]["dialogue"]))
    answers = [""] * len(rows)
    for first in range(0, len(order), BATCH):
        part = order[first:first + BATCH]
        encoded = tokenizer([prompt_of(rows[number]) for number in part], return_tensors="pt", padding=True)
        output = model.generate(input_ids=encoded.input_ids, attention_mask=encoded.attention_mask, do_sample=False)
        for number, text in zip(part, tokenizer.batch_decode(output, skip_special_tokens=True)):
            answers[number] = text
    return answers


def rouge(rows, answers):
    """Returns the mean F1 of ROUGE-1, 2 and L without stemming, and the share of summaries met word for word."""
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    scores = [scorer.score(row["summary"], answer) for row, answer in zip(rows, answers)]
    same = sum(row["summary"] == answer for row, answer in zip(rows, answers)) / len(rows)
    return [sum(score[kind].fmeasure for score in scores) / len(scores) for kind in ("rouge1", "rouge2", "rougeL")] + [same]


@torch.no_grad()
def perplexity(model, tokenizer, rows):
    """Returns the perplexity of the summaries, </s> included, given the dialogues."""
    total = count = 0
    for row in rows:
        target = tokenizer(row["summary"], return_tensors="pt").input_ids
        loss = model(input_ids=tokenizer(prompt_of(row), return_tensors="pt").input_ids, labels=target).loss
        total, count = total + loss.item() * target.shape[1], count + target.shape[1]
    return math.exp(total / count)


@torch.no_grad()
def expert_load(model, tokenizer, rows):
    """Returns the share of tokens of each expert as [layers, experts], encoder first, and the share that was refused."""
    counts, refused = {}, 0
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, SwitchTransformersSparseMLP):
            def count(router, _, output, name=name):
                nonlocal refused
                probabilities = router._compute_router_probabilities(_[0])[0]
                chosen = probabilities.argmax(-1).flatten().bincount(minlength=router.num_experts)
                counts[name] = counts.get(name, 0) + chosen
                refused += (chosen.sum() - output[0].sum()).item()
            hooks.append(module.router.register_forward_hook(count))
    for row in rows:
        model(input_ids=tokenizer(prompt_of(row), return_tensors="pt").input_ids,
              labels=tokenizer(row["summary"], return_tensors="pt").input_ids)
    for hook in hooks:
        hook.remove()
    shares = torch.stack([value / value.sum() for value in counts.values()])
    return list(counts), shares, refused / sum(value.sum().item() for value in counts.values())


def indented(text):
    """Indents a text as Markdown shows it unchanged."""
    return "\n".join("    " + line for line in text.splitlines())


def write_card(folder, options, sizes):
    """Measures the saved checkpoint and writes the card."""
    model = SwitchTransformersForConditionalGeneration.from_pretrained(folder / "model", torch_dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text("utf-8").splitlines()]
    answers = summaries(model, tokenizer, rows)
    parts = {"all": range(len(rows))} | {style: [number for number, row in enumerate(rows) if row["style"] == style]
                                         for style in make_dialogues.STYLES}
    scores = {name: rouge([rows[number] for number in part], [answers[number] for number in part])
              for name, part in parts.items()}
    print(scores, flush=True)
    worse = []
    for bits in (8, 4, 3, 2):
        changed = quantised(model, bits)
        score = rouge(rows, summaries(changed, tokenizer, rows))[1]
        worse.append(f"| INT{bits} | {score:.4f} | {1 - score / scores['all'][1]:.2%} "
                     f"| {perplexity(changed, tokenizer, rows[:128]):.4f} |")
        print(worse[-1], flush=True)
    layers, shares, refused = expert_load(model, tokenizer, rows)
    loads = [f"| {name.split('.')[0]} {name.split('.')[2]} | " + " | ".join(f"{share:.1%}" for share in row) + " |"
             for name, row in zip(layers, shares.tolist())]
    config, weights = model.config, 2 * model.config.d_model * model.config.d_ff
    text = CARD.format(
        millions=sum(weight.numel() for weight in model.parameters()) / 1e6, rows=len(rows), config=config,
        vocabulary=len(tokenizer), weights=weights, record=weights // 2, n_train=TRAIN_ROWS, source=sizes[0],
        target=sizes[1], steps=options.steps, batch=BATCH, warm_up=WARM_UP,
        phases="; ".join(f"from step {first} a rate of {rate} and a weight decay of {decay}"
                         for first, (rate, decay) in PHASES.items()), seed=options.seed,
        balance=" and ".join(f"{value} from step {step}" for step, value in BALANCE.items()),
        scores="\n".join(f"| {name} | " + " | ".join(f"{value:.4f}" for value in values) + " |"
                         for name, values in scores.items()),
        perplexity=perplexity(model, tokenizer, rows[:128]), quantised="\n".join(worse), loads="\n".join(loads),
        refused=refused, heading=" | ".join(str(number) for number in range(config.num_experts)),
        rule=" --- |" * (config.num_experts + 1),
        examples="\n\n---\n\n".join(
            indented(rows[number]["dialogue"] + "\n\nmodel:     " + answers[number] + "\nreference: " +
                     rows[number]["summary"]) for number in range(0, 4)))
    (folder / "README.md").write_text(text, "utf-8")


CARD = """# The Switch sample

A Switch Transformers model (`SwitchTransformersForConditionalGeneration`) of {millions:.1f} million parameters that
summarises short dialogues: the architecture and the task of EdgeMoE's evaluation, small enough to live in the repository.

| file | content |
| --- | --- |
| `model/` | the checkpoint in Hugging Face layout: BF16 safetensors, Unigram tokenizer, configuration, generation settings |
| `calibration.jsonl` | {rows} dialogues with summaries to calibrate and profile on |
| `test.jsonl` | {rows} dialogues with summaries to evaluate on |

Rows have the fields `id`, `style`, `domain`, `dialogue`, `summary`. The task is [dialogues](../tasks/dialogues.lua): the
encoder reads `summarize: ` and the dialogue, the decoder writes the summary.

    moec eval datasets/switch-sample/model --task dialogues --data datasets/switch-sample/test.jsonl

## Architecture

{config.num_layers} encoder and {config.num_decoder_layers} decoder blocks, every one with {config.num_experts} experts of
which one answers each token; hidden size {config.d_model}, {config.num_heads} attention heads of {config.d_kv},
intermediate size {config.d_ff} with ReLU, relative positions in {config.relative_attention_num_buckets} buckets, tied head,
expert capacity {config.expert_capacity}. The vocabulary has {vocabulary} pieces, the embedding {config.vocab_size} rows. One expert
has {weights} weights in two matrices: {record} bytes at INT4 without its scales.

## Data and training

`datasets/scripts/make_dialogues.py` generates every word. Half of the rows are of the style `friends` (two friends write
messages: meetings, shopping, travel, presents, lost things), half of the style `service` (calls to a help desk, a
restaurant, a parcel service, a clinic, a workshop). In six of ten dialogues a fact is taken back later ("no, wait, make it
five"); times and places in the small talk do not matter. A quarter of the summaries word some phrase differently, and a
seventh end in a sentence that nothing in the dialogue implies, so no summariser can reach a ROUGE of 1. The two people of a
dialogue are a pair that occurs only in training, only in calibration or only in test.

The model was trained on {n_train} dialogues ({source:.0f} tokens, summaries of {target:.0f}) for {steps} steps of {batch}, in float32 with
AdamW, in phases ({phases}):
in each the learning rate rose for {warm_up} steps and fell in a straight line to 0. Weight of the load-balancing loss of each
layer: {balance}. No dropout, no jitter; during training no expert was ever full. The weights were rounded to BF16 at the end.

    python3 datasets/scripts/train_switch_sample.py --steps {steps} --seed {seed}

## Summaries

Greedy, by transformers in float32 from the saved BF16 weights, on `test.jsonl`; F1 of rouge-score without stemming; *same*:
share of the summaries that are the reference word for word.

| rows | ROUGE-1 | ROUGE-2 | ROUGE-L | same |
| --- | --- | --- | --- | --- |
{scores}

Perplexity of the first 128 references, given their dialogues: {perplexity:.4f}.

With all experts replaced by symmetric codes with one FP16 scale per output channel:

| experts | ROUGE-2 | loss | perplexity |
| --- | --- | --- | --- |
{quantised}

## Load of experts

Share of the tokens of each layer (`test.jsonl`, references as decoder input); {refused:.3%} of the choices found their expert full.

| layer | {heading} |
|{rule}
{loads}

## Examples

{examples}

## Limits

The model knows a few hundred words and ten kinds of dialogue. It is no measure of language ability, and losses from
quantisation do not carry over to large models. Its summaries have the right form and most of the right words, but only a
part of them has every name, day and number right; facts that were taken back and what stands in the small talk mislead it.
"""


def main():
    """Generates the text, trains, saves and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path("switch-sample.state"))
    parser.add_argument("--out", type=Path, default=ROOT / "switch-sample")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for split in ("calibration", "test"):
        lines = (json.dumps(row) + "\n" for row in make_dialogues.rows(split, "both", HELD_OUT_ROWS))
        (options.out / f"{split}.jsonl").write_text("".join(lines), "utf-8", newline="\n")
    texts = list(make_dialogues.rows("train", "both", TRAIN_ROWS))
    tokenizer = train_tokenizer([text for row in texts[:5000] for text in (prompt_of(row), row["summary"])])
    sources = tokenizer([prompt_of(row) for row in texts])["input_ids"]
    targets = tokenizer([row["summary"] for row in texts])["input_ids"]
    rows = list(zip(sources, targets))
    sizes = [sum(map(len, side)) / len(rows) for side in (sources, targets)]
    print(f"{len(rows)} rows, {sizes[0]:.1f} tokens, summaries {sizes[1]:.1f}", flush=True)
    model = new_model()
    train(model, rows, options)
    save_checkpoint(model, tokenizer, options.out / "model")
    write_card(options.out, options, sizes)


if __name__ == "__main__":
    main()
