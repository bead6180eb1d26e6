"""Fig. 7(a) of EdgeMoE from a profile, and the most sensitive experts: python3 notebook.py PROFILE.h5 [FIGURE.png]

Needs h5py, pandas and matplotlib (python3-h5py python3-pandas python3-matplotlib in Debian). The same numbers
without HDF5: moec profile --show PROFILE.h5 --table experts.csv, then pandas.read_csv("experts.csv").
"""
import sys

import h5py
import matplotlib
import numpy
import pandas

matplotlib.use("Agg")
from matplotlib import colors, pyplot

figure = sys.argv[2] if len(sys.argv) > 2 else "sensitivity.png"
with h5py.File(sys.argv[1]) as f:
    layers, experts, bits = (f["axes/" + axis][:] for axis in ("moe_layer", "expert", "bits"))
    places = pandas.MultiIndex.from_product((layers, experts, bits), names=("layer", "expert", "bits"))
    table = pandas.DataFrame({"loss": f["sensitivity/loss"][:].ravel()}, index=places)  # 0.02 is 2 %
    kl = f["sensitivity/kl"][:]  # sums over the windows that single experts were measured on
    windows = slice(kl.shape[-1])
    tokens = f["windows/scored"][windows].sum()
    table["kl"] = kl.sum(axis=-1).ravel() / tokens
    baseline = numpy.expm1((f["baseline/nll"][windows] - f["reference/nll"][windows]).sum() / tokens)
    data = f.attrs["data_name"]

lowest = table.xs(bits.min(), level="bits")
print(f"{data}: the baseline loses {baseline:.3%}; the most sensitive experts at {bits.min()} bits:")
print(lowest.sort_values("kl", ascending=False).head(5).to_string())

added = 100 * (lowest["loss"].unstack("expert") - baseline)  # rows: layers, columns: experts
reach = max(abs(added.values.min()), abs(added.values.max()), 1e-9)
scale = colors.SymLogNorm(linthresh=reach / 100, vmin=-reach, vmax=reach)
pyplot.figure(figsize=(1 + 0.4 * added.shape[1], 1 + 0.4 * added.shape[0]))
pyplot.imshow(added, norm=scale, cmap="RdBu_r", aspect="auto")
pyplot.yticks(range(len(added.index)), added.index)
pyplot.gca().set(xlabel="expert", ylabel="layer")
pyplot.colorbar(label="loss over the baseline, %")
pyplot.savefig(figure, bbox_inches="tight", dpi=150)
