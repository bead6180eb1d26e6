"""Fig. 7(a) of EdgeMoE from a profile, and the most sensitive experts: python3 notebook.py PROFILE.h5 [FIGURE.png]

Needs h5py, pandas and matplotlib (python3-h5py python3-pandas python3-matplotlib in Debian). The same numbers
without HDF5: moec profile --show PROFILE.h5 --table experts.csv, then pandas.read_csv("experts.csv").
"""
import sys

import h5py
import matplotlib
import pandas

matplotlib.use("Agg")
from matplotlib import colors, pyplot

path = sys.argv[1]
figure = sys.argv[2] if len(sys.argv) > 2 else "sensitivity.png"

with h5py.File(path) as f:
    layers, experts, bits = (f["axes/" + axis][:] for axis in ("moe_layer", "expert", "bits"))
    places = pandas.MultiIndex.from_product((layers, experts, bits), names=("layer", "expert", "bits"))
    table = pandas.DataFrame({"loss": f["sensitivity/loss"][:].ravel()}, index=places)  # 0.02 is 2 %
    kl = f["sensitivity/kl"][:]  # sums over the windows that single experts were measured on
    table["kl"] = kl.sum(axis=-1).ravel() / f["windows/scored"][: kl.shape[-1]].sum()
    baseline = float(f["baseline"].attrs["loss"])
    data = f.attrs["data_name"].decode()

lowest = table.xs(bits.min(), level="bits")
print(f"{data}: the baseline loses {baseline:.3%}; the most sensitive experts at {bits.min()} bits:")
print(lowest.sort_values("kl", ascending=False).head(5).to_string())

added = 100 * (lowest["loss"].unstack("expert") - baseline)  # rows: layers, columns: experts
reach = max(abs(added.min().min()), added.max().max(), 1e-9)
scale = colors.SymLogNorm(linthresh=reach / 100, vmin=-reach, vmax=reach)
pyplot.figure(figsize=(1 + 0.4 * added.shape[1], 1 + 0.4 * added.shape[0]))
pyplot.imshow(added, norm=scale, cmap="RdBu_r", aspect="auto")
pyplot.yticks(range(len(added.index)), added.index)
pyplot.xlabel("expert")
pyplot.ylabel("layer")
pyplot.colorbar(label=f"loss over the baseline, %, one expert at {bits.min()} bits")
pyplot.savefig(figure, bbox_inches="tight", dpi=150)
