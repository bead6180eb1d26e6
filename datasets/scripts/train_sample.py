#!/usr/bin/env python3
"""Trains the sample model of datasets/sample on the generated corpus and writes its card.

Usage:
    train_sample.py [--steps N] [--resume N] [--out FOLDER] [--seed N] [--threads N]

Needs torch, transformers (below 5), tokenizers and safetensors. The script generates the corpus, trains a tokenizer
and an OLMoE model with 16 experts, and fills FOLDER (default: datasets/sample) with the checkpoint in Hugging Face
layout, with calibration.txt and test.txt and with README.md, whose figures are measured on the saved checkpoint. It
also saves every 100 steps, so a run that is cut short leaves a usable checkpoint; --resume N goes on from FOLDER, saved
after N steps, with the optimizer's moments started anew.

The training module holds the experts of a layer in stacked tensors, which is faster on a CPU than transformers'
module list; its logits are compared with OlmoeForCausalLM before every save.
"""

import argparse
import copy
import math
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import GenerationConfig, OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

import make_corpus

EOS = "<|endoftext|>"
VOCABULARY = 2048
TRAIN_BYTES = 16_000_000
HELD_OUT_BYTES = 270_000
WINDOW = 256
BATCH_TOKENS = 4096
LONG_EVERY = 5
SECOND_PHASE = 400
RATES = {50: 3e-3, SECOND_PHASE: 2.5e-3}
BALANCE = 6e-3
CONCENTRATION = 6e-3
SAVE_EVERY = 100


# Text ----------------------------------------------------------------------------------------------------------------

def train_tokenizer(texts):
    """Trains a byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[EOS],
                                                             initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS, model_max_length=1024,
                                   clean_up_tokenization_spaces=False)


def training_stream(tokenizer, documents):
    """Joins the documents to a stream of [2, tokens]: the tokens and the domain of each.

    Every second document on average ends with the end-of-text token, the others with a blank line.
    """
    source, numbers = make_corpus.Source("train", 5), {domain: n for n, domain in enumerate(make_corpus.DOMAINS)}
    parts = tokenizer([text + "\n" + (EOS if source.chance(0.5) else "\n") for _, text in documents])["input_ids"]
    return torch.tensor([[token for part in parts for token in part],
                         [numbers[domain] for (domain, _), part in zip(documents, parts) for _ in part]])


def windows_of(tokenizer, text):
    """Cuts a text into consecutive windows of WINDOW tokens; the rest is left out."""
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    return tokens[:len(tokens) // WINDOW * WINDOW].view(-1, WINDOW)


# Model ---------------------------------------------------------------------------------------------------------------

def configuration():
    """Returns the configuration of the sample model."""
    return OlmoeConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, num_experts=16, num_experts_per_tok=4, rope_theta=10000.0,
        norm_topk_prob=False, router_aux_loss_coef=BALANCE,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=0,
        pad_token_id=0, torch_dtype="bfloat16")


def rotary(length, dim, theta):
    """Returns the cosines and sines of the rotary embedding."""
    frequencies = theta ** (-torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    """Applies the rotary embedding to [batch, heads, length, dim]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Causal attention with normalised queries and keys."""

    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(size, size, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = (nn.RMSNorm(size, config.rms_norm_eps) for _ in range(2))

    def forward(self, x, cos, sin):
        """Returns the attention's output."""
        batch, length, size = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2)
                   for y in (self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, size))


class Experts(nn.Module):
    """Router and experts; the weights of all experts of a layer are stacked."""

    def __init__(self, config):
        super().__init__()
        self.count, self.chosen = config.num_experts, config.num_experts_per_tok
        size, inner = config.hidden_size, config.intermediate_size
        self.gate = nn.Linear(size, self.count, bias=False)
        self.gate_proj = nn.Parameter(torch.empty(self.count, inner, size))
        self.up_proj = nn.Parameter(torch.empty(self.count, inner, size))
        self.down_proj = nn.Parameter(torch.empty(self.count, size, inner))

    def forward(self, x):
        """Returns the weighted sum of the chosen experts and the routing: probabilities and choices of every token."""
        flat = x.reshape(-1, x.shape[-1])
        share = self.gate(flat).softmax(-1)
        weight, expert = share.topk(self.chosen, -1)
        order = expert.flatten().argsort(stable=True)
        counts = expert.flatten().bincount(minlength=self.count)
        inputs = flat[order // self.chosen].split(counts.tolist())
        outputs = [(F.silu(y @ self.gate_proj[e].T) * (y @ self.up_proj[e].T)) @ self.down_proj[e].T
                   for e, y in enumerate(inputs)]
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        outputs = torch.cat(outputs)[inverse].view(*expert.shape, -1)
        return (outputs * weight[..., None]).sum(1).view_as(x), (share, expert)


class Layer(nn.Module):
    """One decoder layer."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Attention(config), Experts(config)

    def forward(self, x, cos, sin):
        """Returns the layer's output and its routing."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y, routing = self.mlp(self.post_attention_layernorm(x))
        return x + y, routing


class Model(nn.Module):
    """The training module: OLMoE with stacked experts and a tied head."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=config.initializer_range)

    def forward(self, tokens):
        """Returns the logits and the routing of every layer."""
        config = self.config
        cos, sin = rotary(tokens.shape[1], config.hidden_size // config.num_attention_heads, config.rope_theta)
        x, routings = self.embed_tokens(tokens), []
        for layer in self.layers:
            x, routing = layer(x, cos, sin)
            routings.append(routing)
        return F.linear(self.norm(x), self.embed_tokens.weight), routings

    def load_from_transformers(self, state):
        """Takes over the state of an OlmoeForCausalLM."""
        own = {}
        for name, tensor in self.state_dict().items():
            path, _, last = name.rpartition(".")
            own[name] = (torch.stack([state[f"model.{path}.experts.{e}.{last}.weight"] for e in range(len(tensor))])
                         if tensor.dim() == 3 else state[f"model.{name}"])
        self.load_state_dict(own)

    def named_for_transformers(self):
        """Returns the state under the names of OlmoeForCausalLM."""
        state = {"lm_head.weight": self.embed_tokens.weight.detach()}
        for name, tensor in self.state_dict().items():
            path, _, last = name.rpartition(".")
            if tensor.dim() == 3:
                state.update({f"model.{path}.experts.{e}.{last}.weight": part for e, part in enumerate(tensor)})
            else:
                state[f"model.{name}"] = tensor
        return state


# Training ------------------------------------------------------------------------------------------------------------

def overlap(share, expert, groups):
    """Returns how much the tokens of a group agree on their experts: from 1 (balanced) to experts / chosen."""
    chosen = torch.zeros_like(share).scatter_(1, expert, 1.0)
    sizes = groups.sum(0)
    used, likely = ((groups.T @ part) / sizes.clamp(min=1)[:, None] for part in (chosen, share))
    return share.shape[1] / expert.shape[1] * ((used * likely).sum(1) * sizes).sum() / sizes.sum()


def routing_loss(routings, domains, step):
    """Asks for balance over all tokens and, in the second phase, for agreement within a domain.

    Returns the loss and the mean overlap of all tokens and within the domains.
    """
    one_hot = F.one_hot(domains.flatten(), len(make_corpus.DOMAINS)).float()
    everything = torch.ones(len(one_hot), 1)
    together = sum(overlap(*routing, everything) for routing in routings)
    apart = sum(overlap(*routing, one_hot) for routing in routings)
    loss = BALANCE * together - (CONCENTRATION * apart if step >= SECOND_PHASE else 0.0)
    return loss, together.item() / len(routings), apart.item() / len(routings)


def learning_rate(step, steps):
    """Follows straight lines through the points of RATES, from zero to zero."""
    points = sorted({0: 0.0, **RATES, steps: 0.0}.items())
    for (left, low), (right, high) in zip(points, points[1:]):
        if left <= step < right:
            return low + (high - low) * (step + 1 - left) / (right - left)
    return 0.0


def batch_of(stream, step, generator):
    """Draws [2, windows, length + 1] from the stream; every LONG_EVERY-th batch has windows of 1024 tokens."""
    length = 1024 if step % LONG_EVERY == LONG_EVERY - 1 else WINDOW
    starts = torch.randint(stream.shape[1] - length, (BATCH_TOKENS // length,), generator=generator)
    return stream[:, starts[:, None] + torch.arange(length + 1)]


def train(model, stream, first, steps, seed, save):
    """Trains the model from step first on and calls save from time to time and at the end."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), eps=1e-8, foreach=True)
    generator = torch.Generator().manual_seed(seed)
    begun, average = time.time(), None
    for step in range(steps):
        tokens, domains = batch_of(stream, step, generator)
        if step < first:
            continue
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps) * min(1.0, (step + 1 - first) / 10)
        logits, routings = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        extra, together, apart = routing_loss(routings, domains[:, :-1], step)
        (loss + extra).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % 20 == 19:
            print(f"step {step + 1}/{steps} loss {average:.3f} overlap {together:.2f} in domains {apart:.2f} "
                  f"time {time.time() - begun:.0f} s", flush=True)
        if (step + 1) % SAVE_EVERY == 0 and step + 1 < steps:
            save(model)
    save(model)


def save_checkpoint(model, tokenizer, sample, folder):
    """Checks the logits against transformers, then writes the folder file by file."""
    reference = OlmoeForCausalLM(model.config)
    reference.load_state_dict(model.named_for_transformers())
    with torch.no_grad():
        difference = (reference(sample).logits - model(sample)[0]).abs().max().item()
    if difference >= 1e-4:
        raise SystemExit(f"logits differ from transformers by {difference}")
    reference.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        reference.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in Path(temporary).iterdir():
            os.chmod(file, 0o644)
            os.replace(file, folder / file.name)
    print(f"saved; logits differ from transformers by at most {difference:.1e}", flush=True)


# Evaluation ----------------------------------------------------------------------------------------------------------

@torch.no_grad()
def perplexity(model, windows):
    """Scores tokens 2 to WINDOW of every window."""
    total = 0.0
    for part in windows.split(16):
        logits = model(part).logits[:, :-1]
        total += F.cross_entropy(logits.flatten(0, 1).double(), part[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / (windows.shape[0] * (WINDOW - 1)))


@torch.no_grad()
def quantised(model, bits):
    """Returns a copy whose experts went through symmetric quantisation with one scale per output channel."""
    model, top = copy.deepcopy(model), 2 ** (bits - 1) - 1
    for name, weight in model.named_parameters():
        if ".experts." in name:
            scale = (weight.abs().amax(1, keepdim=True) / top).half().float()
            weight.copy_((weight / scale).round().clamp(-top - 1, top) * scale)
    return model


@torch.no_grad()
def expert_usage(model, tokenizer):
    """Returns, for every domain, the share of selections of each expert as [layers, experts] on the test documents."""
    config, usage = model.config, {}
    for domain, text in make_corpus.documents("test", HELD_OUT_BYTES):
        tokens = torch.tensor([tokenizer(text)["input_ids"][:1024]])
        for layer, logits in enumerate(model(tokens, output_router_logits=True).router_logits):
            chosen = logits.topk(config.num_experts_per_tok, -1).indices.flatten()
            table = usage.setdefault(domain, torch.zeros(config.num_hidden_layers, config.num_experts))
            table[layer] += chosen.bincount(minlength=config.num_experts)
    return {domain: usage[domain] / usage[domain].sum(1, keepdim=True) for domain in make_corpus.DOMAINS}


def usage_tables(usage):
    """Formats the usage of experts as Markdown."""
    layers, experts = next(iter(usage.values())).shape
    overall = torch.stack(list(usage.values())).mean(0)
    lines = ["| domain | " + " | ".join(f"layer {n}" for n in range(layers)) + " | top 4 | distance |",
             "| --- |" + " --- |" * (layers + 2)]
    for domain, table in [*usage.items(), ("all", overall)]:
        best = [f"{row.argmax().item()} ({row.max().item():.0%})" for row in table]
        top = table.topk(4, -1).values.sum(1).mean()
        distance = (table - overall).abs().sum(1).mean() / 2
        lines.append(f"| {domain} | " + " | ".join(best) + f" | {top:.0%} | {distance:.2f} |")
    lines += ["", "| layer | " + " | ".join(f"{n}" for n in range(experts)) + " |", "| --- |" + " --- |" * experts]
    for layer, row in enumerate(overall.tolist()):
        lines.append(f"| {layer} | " + " | ".join(f"{share:.1%}" for share in row) + " |")
    return "\n".join(lines)


@torch.no_grad()
def continuation(model, tokenizer, prompt):
    """Continues a prompt greedily."""
    tokens = torch.tensor([tokenizer(prompt)["input_ids"]])
    output = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=80, do_sample=False)[0]
    text = tokenizer.decode(output, skip_special_tokens=True)
    return "\n".join("    " + line for line in text.rstrip().splitlines())


CARD = """# The sample model

An OLMoE model (`OlmoeForCausalLM`) of {millions:.1f} million parameters trained until its experts specialised and its
routing depended on the text. It is small enough to live in the repository and is meant for trying
and testing: it writes ten kinds of generated text and knows nothing else.

| file | content |
| --- | --- |
| `model/` | the checkpoint in Hugging Face layout: BF16 safetensors, tokenizer, configuration |
| `calibration.txt` | {calibration_windows} windows of {window} tokens to calibrate and profile on |
| `test.txt` | {test_windows} windows of {window} tokens to evaluate on |

## Architecture

{layers} layers, hidden size {hidden}, {heads} attention heads of {head}, {experts} experts per layer of which {chosen}
answer each token (`norm_topk_prob` false), intermediate size {inner}, tied head, byte-level BPE vocabulary of {vocab},
{positions} positions. One expert has {expert} weights: {record} bytes at INT4 without its scales.

## Data and training

`datasets/scripts/make_corpus.py` generates every word from grammars and word lists written for this project. Its
domains ({domains})
have about equal shares of the bytes. Training, calibration and test use different seeds and share no content-bearing
word pairs in nine of the domains (card games are dealt at random). No document of calibration or test occurs in training;
short lines that a template gives again and again do.

The model saw {tokens:.1f} million tokens drawn from a stream of {stream:.1f} million ({steps} steps of {batch} tokens
in windows of {window}, every fifth batch in windows of 1024). In the stream, documents end with `<|endoftext|>` or with
a blank line, equally often; the text files use the blank line. AdamW with weight decay 0.1 and seed {seed} in float32;
the learning rate follows straight lines from 0 through {rates} to 0 at the end.
{resumed}
Two small terms shape the routing: the usual load-balancing loss over the whole batch ({balance} per layer) and, with
the opposite sign ({concentration}) and from step {second} on, the same quantity within each domain. The
latter makes tokens of one domain agree on their experts more than they would by themselves, so that a model this small
shows domain-dependent routing.

    python3 datasets/scripts/train_sample.py --steps {steps} --seed {seed}

## Perplexity

Measured on the saved BF16 weights in float32 by transformers: consecutive windows of {window} tokens without overlap,
tokens 2 to {window} of each are scored; the incomplete last window is left out. A uniform guess has {vocab}.

| text | perplexity |
| --- | --- |
| `calibration.txt` | {calibration:.4f} |
| `test.txt` | {test:.4f} |

On `test.txt`, with all routed experts replaced by symmetric codes with one FP16 scale per output channel:

| experts | perplexity | loss |
| --- | --- | --- |
{quantised}

## Routing on test documents

Most used expert of each layer with its share of the selections (uniform: {uniform:.2%}, most possible: {four:.0%});
*top 4*: share of the four most used experts, mean over layers (uniform: {four:.0%}); *distance*: total variation from
the mean of all domains, mean over layers. Then the shares of all experts in the mean of all domains.

{usage}

## Continuations

Greedy, from the first line or words of each:

{continuations}

## Limits

The model knows a few hundred words and the templates of its generator. It is no measure of language ability, and losses
from quantisation do not carry over to large models. Training was short: the model has each domain's form, but it mixes
up names and pronouns and gets most sums wrong. The text is mostly ASCII English with some accented letters and symbols.
"""
RESUMED = "The run was interrupted after step {step} and resumed from the BF16 weights with fresh moments.\n"
PROMPTS = ["The Tailor and the Owl\nOnce upon a time", "def count_points(", "Problem 1: Mira has 12 stamps and",
           "Weather report issued at Redcliff", "Dear Nora,\n"]


def write_card(folder, stream, options):
    """Measures the saved checkpoint and writes the card."""
    model = OlmoeForCausalLM.from_pretrained(folder / "model", torch_dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    parts = [windows_of(tokenizer, (folder / name).read_text("utf-8")) for name in ("calibration.txt", "test.txt")]
    calibration, test = (perplexity(model, part) for part in parts)
    print(f"perplexity: calibration {calibration:.4f}, test {test:.4f}", flush=True)
    rows = []
    for bits in (8, 4, 3, 2):
        changed = perplexity(quantised(model, bits), parts[1])
        rows.append(f"| INT{bits} | {changed:.4f} | {changed / test - 1:.1%} |")
        print(rows[-1], flush=True)
    config = model.config
    weights = 3 * config.hidden_size * config.intermediate_size
    text = CARD.format(
        millions=sum(p.numel() for p in model.parameters()) / 1e6, calibration_windows=len(parts[0]),
        test_windows=len(parts[1]), window=WINDOW, layers=config.num_hidden_layers, hidden=config.hidden_size,
        heads=config.num_attention_heads, head=config.hidden_size // config.num_attention_heads,
        experts=config.num_experts, chosen=config.num_experts_per_tok, inner=config.intermediate_size,
        vocab=config.vocab_size, positions=config.max_position_embeddings, expert=weights, record=weights // 2,
        domains=", ".join(make_corpus.DOMAINS), tokens=options.steps * BATCH_TOKENS / 1e6, stream=stream.shape[1] / 1e6,
        steps=options.steps, batch=BATCH_TOKENS, balance=BALANCE, second=SECOND_PHASE,
        rates=" and ".join(f"{rate} at step {step}" for step, rate in RATES.items()),
        resumed=RESUMED.format(step=options.resume) if options.resume else "",
        concentration=CONCENTRATION, seed=options.seed,
        calibration=calibration, test=test, quantised="\n".join(rows), uniform=1 / config.num_experts,
        four=4 / config.num_experts, usage=usage_tables(expert_usage(model, tokenizer)),
        continuations="\n\n---\n\n".join(continuation(model, tokenizer, prompt) for prompt in PROMPTS))
    (folder / "README.md").write_text(text, "utf-8")


def main():
    """Generates the text, trains, saves and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--resume", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "sample")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    for split in ("calibration", "test"):
        texts = (text + "\n\n" for _, text in make_corpus.documents(split, HELD_OUT_BYTES))
        (options.out / f"{split}.txt").write_text("".join(texts), "utf-8", newline="\n")
    documents = list(make_corpus.documents("train", TRAIN_BYTES))
    tokenizer = train_tokenizer(text for _, text in documents)
    stream = training_stream(tokenizer, documents)
    print(f"{stream.shape[1]} tokens to train on", flush=True)
    model = Model(configuration())
    if options.resume:
        saved = OlmoeForCausalLM.from_pretrained(options.out / "model", torch_dtype=torch.float32)
        model.load_from_transformers(saved.state_dict())
    train(model, stream, options.resume, options.steps, options.seed,
          lambda model: save_checkpoint(model, tokenizer, stream[:1, :WINDOW], options.out / "model"))
    write_card(options.out, stream, options)


if __name__ == "__main__":
    main()
