#!/usr/bin/env python3
"""Between Hugging Face folders and GGUF files of the decoders that both moec and llama.cpp run.

    gguf_files.py write MODEL OUT.gguf            a folder of BF16 weights as a GGUF file of the same values; experts
                                                  in MXFP4 (gpt_oss) keep their codes
    gguf_files.py read IN.gguf MODEL OUT          a GGUF file as a folder of F32 weights, decoded exactly
    gguf_files.py read IN.gguf MODEL OUT --only gate,up
                                                  the same, all other weights as in MODEL
    gguf_files.py types IN.gguf MODEL             bytes and types by role, as JSON; fallbacks are tensors whose rows
                                                  cannot be cut into the blocks of 256 that the asked types have

Families: qwen2_moe and olmoe; `write` also takes qwen3_moe and gpt_oss. Needs numpy and gguf of PyPI. A tied head is
stored twice, because llama.cpp's loaders of these families know no other; norms, biases and routers are F32, as
llama.cpp's own converter has them.
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

try:
    import gguf
    import numpy as np
    from gguf import quants
except ImportError as missing:
    print(f"{missing}: install gguf and numpy of PyPI", file=sys.stderr)
    sys.exit(77)

# (name in GGUF, name in the folder) of a layer's tensors; experts are one tensor in GGUF.
LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_output.bias": "self_attn.o_proj.bias",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}
# What is called otherwise in gpt_oss, whose experts are stacked in the folder too, gate and up in turns.
GPT_OSS = {
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate_inp.weight": "mlp.router.weight",
    "ffn_gate_inp.bias": "mlp.router.bias",
}
GPT_OSS_EXPERTS = {"ffn_gate_exps": ("gate_up_proj", 0, 2), "ffn_up_exps": ("gate_up_proj", 1, 2),
                   "ffn_down_exps": ("down_proj", 0, 1)}
GPT_OSS_ROPE = {"factor": 32.0, "original_max_position_embeddings": 4096}  # where config.json says nothing
EXPERTS = {"ffn_gate_exps.weight": "gate", "ffn_up_exps.weight": "up", "ffn_down_exps.weight": "down"}
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ARCHITECTURES = {"qwen2_moe": "qwen2moe", "olmoe": "olmoe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}
MXFP4_WEIGHTS = 32  # that share a scale


class Folder:
    """Tensors of a Hugging Face folder's safetensors files, as F32."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.config = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        self.where = {}
        for file in sorted(self.path.glob("*.safetensors")):
            with open(file, "rb") as data:
                size = struct.unpack("<Q", data.read(8))[0]
                for name, tensor in json.loads(data.read(size)).items():
                    if name != "__metadata__":
                        self.where[name] = (file, 8 + size, tensor)

    def __contains__(self, name):
        return name in self.where

    def bits(self, name):
        """(values as stored, type)"""
        file, start, tensor = self.where[name]
        first, end = tensor["data_offsets"]
        kind = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8}[tensor["dtype"]]
        values = np.fromfile(file, dtype=kind, count=(end - first) // np.dtype(kind).itemsize, offset=start + first)
        return values.reshape(tensor["shape"]), tensor["dtype"]

    def f32(self, name):
        values, kind = self.bits(name)
        return (values.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else values.astype(np.float32)

    def bf16(self, name):
        values, kind = self.bits(name)
        if kind != "BF16":
            sys.exit(f"'{name}' of '{self.path}' is {kind}, expected BF16: other weights would be rounded here")
        return values


def expert_names(layer, projection, config):
    return [f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"
            for expert in range(config["num_experts"])]


def add_vocabulary(writer, folder):
    """Byte-level BPE. The pre-tokenizer is GPT-2's or OLMo's, which are the same in llama.cpp."""
    tokenizer = json.loads((folder.path / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model["type"] != "BPE":
        sys.exit(f"'{folder.path}' has a tokenizer of type '{model['type']}', expected BPE")
    tokens = {index: token for token, index in model["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens.update(special)
    count = folder.config["vocab_size"]
    names = [tokens.get(index, f"[unused {index}]") for index in range(count)]
    kinds = [gguf.TokenType.CONTROL if index in special else
             gguf.TokenType.NORMAL if index in tokens else gguf.TokenType.UNUSED for index in range(count)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    end = folder.config.get("eos_token_id") or 0
    writer.add_bos_token_id(folder.config.get("bos_token_id") or end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)


def mxfp4(blocks, scales):
    """Blocks as ggml has them, (expert, row, bytes): a scale, then in each byte weight i and weight i + 16 of the 32. The
    folder has weight 2 i and weight 2 i + 1."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], MXFP4_WEIGHTS)
    half = MXFP4_WEIGHTS // 2
    packed = codes[..., :half] | codes[..., half:] << 4
    return np.concatenate([scales[..., None], packed], axis=-1).reshape(*blocks.shape[:2], -1)


def add_gpt_oss_experts(writer, folder, layer):
    for name, (projection, first, step) in GPT_OSS_EXPERTS.items():
        source = f"model.layers.{layer}.mlp.experts.{projection}"
        blocks, scales = (folder.bits(source + part)[0][:, first::step] for part in ("_blocks", "_scales"))
        writer.add_tensor(f"blk.{layer}.{name}.weight", mxfp4(blocks, scales),
                          raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        writer.add_tensor(f"blk.{layer}.{name}.bias", folder.f32(source + "_bias")[:, first::step].copy())


def add_stacked_experts(writer, folder, layer):
    for name, projection in EXPERTS.items():
        stacked = np.stack([folder.bf16(each) for each in expert_names(layer, projection, folder.config)])
        writer.add_tensor(f"blk.{layer}.{name}", stacked.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def add_dimensions(writer, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_sliding_window(config["sliding_window"])
        rope = config.get("rope_scaling") or GPT_OSS_ROPE
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def write(model, out):
    folder = Folder(model)
    config = folder.config
    if config["model_type"] not in ARCHITECTURES:
        sys.exit(f"'{model}' is of family '{config['model_type']}', expected one of {', '.join(ARCHITECTURES)}")
    is_gpt_oss = config["model_type"] == "gpt_oss"
    names = {name: source for name, source in LAYER.items() if source not in GPT_OSS.values()} | GPT_OSS \
        if is_gpt_oss else LAYER
    writer = gguf.GGUFWriter(out, ARCHITECTURES[config["model_type"]])
    writer.add_name(folder.path.name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE if is_gpt_oss else gguf.LlamaFileType.MOSTLY_BF16)
    add_dimensions(writer, config)
    add_vocabulary(writer, folder)

    def add(name, source):
        if "norm" in name or "bias" in name or "gate_inp" in name or "sinks" in name:
            writer.add_tensor(name, folder.f32(source).squeeze())
        else:
            writer.add_tensor(name, folder.bf16(source).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    for name, source in OUTSIDE.items():
        add(name, source if source in folder else OUTSIDE["token_embd.weight"])
    for layer in range(config["num_hidden_layers"]):
        for name, source in names.items():
            if f"model.layers.{layer}.{source}" in folder:
                add(f"blk.{layer}.{name}", f"model.layers.{layer}.{source}")
        (add_gpt_oss_experts if is_gpt_oss else add_stacked_experts)(writer, folder, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decoded(reader, folder, only):
    """(name in the folder, F32 values) of every tensor; with `only`, those projections of experts alone."""
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in OUTSIDE:
            if not only:
                yield OUTSIDE[tensor.name], values
            continue
        layer, name = tensor.name.split(".", 2)[1:]
        if name in EXPERTS:
            if not only or EXPERTS[name] in only:
                yield from zip(expert_names(layer, EXPERTS[name], folder.config), values)
        elif not only:
            source = f"model.layers.{layer}.{LAYER[name]}"
            yield source, values.reshape(folder.where[source][2]["shape"])


def read(path, model, out, only):
    folder = Folder(model)
    if folder.config["model_type"] == "gpt_oss":
        sys.exit(f"'{model}' is of family 'gpt_oss', which is only written")
    tensors = dict(decoded(gguf.GGUFReader(path), folder, only))
    for name in folder.where:
        if only and name not in tensors:
            tensors[name] = folder.f32(name)
    missing = [name for name in folder.where if name not in tensors]
    if missing:
        sys.exit(f"'{path}' lacks '{missing[0]}' and {len(missing) - 1} other tensors of '{model}'")
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, dtype="<f4").tobytes())
    config = dict(folder.config, torch_dtype="float32")
    config.pop("dtype", None)
    if "lm_head.weight" in tensors:
        config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"):
        if (folder.path / name).exists():
            shutil.copyfile(folder.path / name, out / name)


def types(path, model):
    """By role {type: [tensors, bytes]}; what cannot be cut into blocks of 256; bytes of a tied head's second copy."""
    roles, narrow = {}, {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = tensor.name if tensor.name in OUTSIDE else tensor.name.split(".", 2)[2]
        kind = tensor.tensor_type.name
        entry = roles.setdefault(name, {}).setdefault(kind, [0, 0])
        entry[0] += 1
        entry[1] += int(tensor.n_bytes)
        if int(tensor.shape[0]) % 256 != 0 and kind not in ("F32", "BF16"):
            narrow.setdefault(name, {"columns": int(tensor.shape[0]), "types": []})
            if kind not in narrow[name]["types"]:
                narrow[name]["types"].append(kind)
    head = 0 if "lm_head.weight" in Folder(model) else sum(entry[1] for entry in roles["output.weight"].values())
    return {"bytes": pathlib.Path(path).stat().st_size, "roles": roles, "fallbacks": narrow, "head_again": head}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write")
    writing.add_argument("model")
    writing.add_argument("out")
    reading = verbs.add_parser("read")
    reading.add_argument("gguf")
    reading.add_argument("model")
    reading.add_argument("out")
    reading.add_argument("--only", default="", help="projections of experts, separated by commas")
    listing = verbs.add_parser("types")
    listing.add_argument("gguf")
    listing.add_argument("model")
    options = parser.parse_args()
    if options.verb == "write":
        write(options.model, options.out)
    elif options.verb == "read":
        read(options.gguf, options.model, options.out, [name for name in options.only.split(",") if name])
    else:
        print(json.dumps(types(options.gguf, options.model)))


if __name__ == "__main__":
    main()
