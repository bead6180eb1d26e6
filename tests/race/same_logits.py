#!/usr/bin/env python3
"""Whether llama.cpp computes the model that moec computes: log-probabilities of the same windows of tokens.

    same_logits.py LOGITS MODEL TOOL

LOGITS is what `llama-perplexity --save-all-logits` wrote, TOOL the program build/tools/logits. The second half of each
window is compared; llama.cpp rounds activations to BF16 where weights are BF16, so that the two are not equal to the
last bit. Exits 1 when the perplexities differ by more than 0.5 %. Needs numpy.
"""

import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

LIMIT = 0.005


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, model, tool = sys.argv[1:]
    data = np.memmap(path, dtype=np.uint8, mode="r")
    if bytes(data[:8]) != b"_logits_":
        sys.exit(f"'{path}' is no file of llama-perplexity's logits")
    length, vocabulary, count = (int(each) for each in data[8:20].view(np.int32))
    tokens = np.array(data[20:20 + 4 * length * count]).view(np.int32).reshape(count, length)
    first = length // 2
    scored = length - 1 - first
    width = (vocabulary + 1) // 2 * 2 + 4
    rows = np.array(data[20 + tokens.nbytes:]).view(np.uint16)[:count * scored * width].reshape(count, scored, width)
    sums, n_apart = [0.0, 0.0], 0.0
    with tempfile.TemporaryDirectory() as folder:
        ids, out = pathlib.Path(folder) / "tokens.u32", pathlib.Path(folder) / "logits.f32"
        for window in range(count):
            tokens[window].astype("<u4").tofile(ids)
            subprocess.run([tool, model, ids, out], check=True, stdout=subprocess.DEVNULL)
            logits = np.fromfile(out, dtype="<f4").reshape(length, -1)[first:-1, :vocabulary].astype(np.float64)
            targets = tokens[window][first + 1:]
            at = np.arange(scored)
            ours = logits[at, targets] - np.logaddexp.reduce(logits, axis=1)
            head = rows[window][:, :4].copy().view(np.float32)
            theirs = head[:, 0] * rows[window][at, 4 + targets].astype(np.float64) + head[:, 1]
            sums[0] -= ours.sum()
            sums[1] -= theirs.sum()
            n_apart += np.abs(ours - theirs).sum()
    ours, theirs = (math.exp(each / (count * scored)) for each in sums)
    good = abs(ours - theirs) <= LIMIT * theirs
    print(f"{count} windows of {length} tokens, second halves: perplexity {ours:.4f} in moec, {theirs:.4f} in llama.cpp; "
          f"log-probabilities {n_apart / (count * scored):.4f} apart on average{'' if good else ': NOT THE SAME MODEL'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
