-- The report about sparsity inside experts. What was not measured does not appear.
local claims = require "claims"
local floe = require "floe"
local joins = require "joins"
local page = require "page"
local results = require "results"

local LEVELS = { "0.5", "0.6", "0.7", "0.8", "0.9" } -- of sparsity
local PAIR_BYTES = 2304                              -- gate row and down column of OLMoE-1B-7B at INT4 in groups of 32

-- Table 7 has perplexities, of which those at INT8 stand for the original's: INT8, then INT1 to INT4.
local TABLE_7 = {
  { "Mixtral-8x7B, the paper's", "gate", 5.119, 1130, 6.245, 5.310, 5.158 },
  { "", "down", 5.121, 1910, 14.36, 5.968, 5.270 }, { "", "up", 5.119, 520.1, 6.177, 5.281, 5.151 },
  { "Qwen1.5-MoE-A2.7B, the paper's", "gate", 9.227, 102.0, 10.72, 9.364, 9.258 },
  { "", "down", 9.224, 138.4, 12.53, 9.655, 9.419 }, { "", "up", 9.226, 71.06, 10.19, 9.426, 9.270 },
}

local function given_projections()
  local rows = {}
  for r, given in ipairs(TABLE_7) do
    rows[r] = { given[1], given[2] }
    for bits = 1, 4 do rows[r][2 + bits] = ("%.1f"):format((given[3 + bits] / given[3] - 1) * 100) end
  end
  return rows
end

-- Losses of a projection by bits, as points.
local function losses_of(record, sample)
  local points = {}
  for bits = 1, 4 do
    points[bits] = {}
    for _, key in ipairs { "loss", "loss_low", "loss_high" } do
      points[bits][key] = sample.results:at(("profile.h5:projection/%s[%s, %d]"):format(key, record.projection, bits))
    end
  end
  return points
end

local function kernels_of(chip, times) return { "F16, the paper's", chip, "0.5 to 0.9", "–", "–", "–", times } end

-- A plan: its certificate, its test, and what a token reads of it and of all neurons.
local function plan(file, words)
  return { over = { { words = words } },
    at = { proven = "plan-" .. file .. ":plan", test = "plan-" .. file .. "-test:" },
    let = { compares = "proven.projection == 'gate' and 'the gate' or '|up . x|'",
      bytes = "proven.expert_bytes_per_token", dense = "proven.without.expert_bytes_per_token" } }
end

-- A bundle without a plan, whose bytes of all neurons another evaluation told.
local function bundle(words, test, told, proven)
  return { over = { { words = words, compares = "–" } }, at = { test = test .. ":", told = told .. ":" },
    may = { proven = proven },
    let = { bytes = "told.dense_expert_bytes_per_token", dense = "told.dense_expert_bytes_per_token" } }
end

local function level(file, experts, sparsity)
  return { over = { { experts = experts, sparsity = sparsity } }, at = { row = file .. ":" } }
end

local function levels()
  local list = {}
  for _, one in ipairs { { "int8", "int8" }, { "int4", "int4" }, { "int3", "int3" }, { "int2", "int2" },
    { "mixed", "up INT2, gate and down INT4" }, { "signs", "up INT1, gate and down INT4" } } do
    table.insert(list, level(one[1] .. "-0", one[2], "none"))
    for _, sparsity in ipairs(LEVELS) do table.insert(list, level(one[1] .. "-" .. sparsity, one[2], sparsity)) end
  end
  return list
end

local function by_bits(bits)
  return { ("INT%d, %%"):format(bits),
    (("{losses[N].loss:2%} ({losses[N].loss_low:2%} to {losses[N].loss_high:2%})"):gsub("N", bits)) }
end

local ENTRIES = {
  { "Fig. 2 and 3: what small activations and few bits cost", charts = { "up_quantiles", "sparsity", "projection" },
    records = "profile.h5:" },
  { "Fig. 3b: bits, one projection at a time", name = "projections", given = given_projections,
    records = { over = joins.cross { "projection", { "gate", "down", "up" } },
      at = { any = "profile.h5:projection/loss[{projection}, 2]" }, with = { losses = losses_of } },
    columns = { { "model", "{projection == 'gate' and name or ''}" }, { "projection", "{projection}" }, by_bits(1),
      by_bits(2), by_bits(3), by_bits(4) } },
  { "Table 1: one expert, sparse beside dense", name = "kernels", records = "kernels:experts",
    columns = { { "up", "{up}" }, { "gate and down", "{gate_and_down}" }, { "sparsity", "{sparsity:1}" },
      { "threads", "{threads:0}" }, { "dense, us", "{dense_ns * 1e-3:1}" }, { "bytes, %", "{bytes_share:1%}" },
      { "times faster", "{speedup:2}" } },
    given = { kernels_of("H100", "1.26, 1.37, 1.48, 1.59, 1.64"), kernels_of("A100", "1.30, 1.35, 1.44, 1.52, 1.63"),
      kernels_of("A6000", "1.44, 1.56, 1.72, 1.89, 1.99"), kernels_of("RTX 3090", "1.43, 1.53, 1.72, 1.80, 1.92") } },
  { "Fig. 4: what a layer's input tells of the next layer",
    "Experts of this layer, as many as a token takes, by the input of the layer before: its router's choice, and a "
      .. "learned predictor's. Active neurons of these experts at a sparsity, by their up projections on that input.",
    name = "predictors", records = "predictors:by_layer",
    columns = { { "layer", "{layer:0}" }, { "similarity of the inputs", "{cosine:3}" },
      { "precision of the gate, %", "{gate:1%}" }, { "of what was learned, %", "{learned:1%}" },
      { "recall at 0.5, %", "{recall[1]:1%}" }, { "at 0.6, %", "{recall[2]:1%}" }, { "at 0.7, %", "{recall[3]:1%}" },
      { "at 0.8, %", "{recall[4]:1%}" }, { "at 0.9, %", "{recall[5]:1%}" } } },
  { "Fig. 9b: sparsity on top of bits", name = "levels", records = levels(),
    columns = { { "experts", "{experts}" }, { "sparsity", "{sparsity}" }, { "loss on the test text, %", "{loss:2%}" },
      page.INTERVAL, { "neurons active, %", "{active_share:1%}" },
      { "KiB a token", "{expert_bytes_per_token / 1024:1}" } } },
  { "Plans at one promise, and bits alone", name = "plans",
    records = { bundle("none: bits alone", "static", "static", "static-compile:"),
      plan("neuron", "by each neuron's harm and the token's gate weight"),
      plan("expert", "by a threshold for each expert"), plan("model", "one share for all experts"),
      plan("floe", "FloE: one share for all experts"), plan("cats", "CATS: one share for all experts"),
      plan("chess", "CHESS: by neuron, with the token's gate weight"),
      bundle("none: HQQ, int4, without a promise", "int4-0", "int4-0.5"),
      bundle("none: HQQ, int3, without a promise", "int3-0", "int3-0.5"),
      bundle("none: HQQ, int2, without a promise", "int2-0", "int2-0.5") },
    columns = { { "neurons left out", "{words}" }, { "compares", "{compares}" },
      { "certificate, %", "{proven.loss:2%}" },
      { "its interval, %", "{proven.loss_low:2%} to {proven.loss_high:2%}" },
      { "on the test text", "{test.loss:2%}" }, { "its interval, %", "{test.loss_low:2%} to {test.loss_high:2%}" },
      { "KiB a token", "{bytes / 1024:1}" }, { "with all neurons", "{dense / 1024:1}" } } },
  { "Fig. 6: tokens a second by length, a quarter of the experts' memory", name = "lengths", records = floe.LENGTHS,
    columns = { { "prompt:decoded", "{length}" }, { "tokens/s", "{1000 / plan:0}" },
      { "bits alone, LRU and gate", "{1000 / static:0}" }, { "two bits, all in memory", "{1000 / two_bits:0}" },
      { "times faster", "{static / plan:2}" }, { "of two bits, %", "{two_bits / plan:0%}" } },
    given = { { "Mixtral-8x7B, the paper's mean", "–", "Mixtral-Offloading", "HQQ INT2 on the GPU", "2.60", "91" } } },
  { "Fig. 7: bandwidth by the size of a request, this machine's storage",
    "Random reads past the page cache, 32 at once, where the paper copies to a GPU. A pair is a gate row beside its "
      .. "down column, at INT4; apart from each other they would be requests of half the size.",
    name = "transfers", records = { over = "transfers:reads", may = { all = "transfers:reads" } },
    columns = { { "KiB a request", "{bytes / 1024:0}" },
      { "pairs of OLMoE-1B-7B", "{bytes / " .. PAIR_BYTES .. ":1}" }, { "MB/s", "{bytes_per_second * 1e-6:0}" },
      { "of the fastest, %", "{bytes_per_second / most(all, 'bytes_per_second'):0%}" } } },
  { "Fig. 8: decoding by memory, on storage of 550 MB/s, 80 us",
    "Records are read whole from storage: what a plan saves here is memory bandwidth and computing.",
    name = "decoding", records = floe.DECODING,
    columns = { { "memory for experts, %", "{share}" }, { "ms a token", "{plan:3}" },
      { "with all neurons", "{none:3}" }, { "bits alone, LRU and gate", "{static:3}" },
      { "times faster than all neurons", "{none / plan:2}" }, { "than bits alone", "{static / plan:2}" } } },
}

-- Adds to the study of predictors its figures layer by layer, and those behind the first.
local function derive(root)
  if not root.predictors or not root.layers then return end
  root.by_layer, root.behind = {}, {}
  for l, layer in ipairs(root.layers) do
    local record = { layer = layer, cosine = root.cosine[l], recall = {} }
    for _, predictor in ipairs(root.predictors) do record[predictor.name] = predictor.layer_precision[l][1] end
    for n, neurons in ipairs(root.neurons or {}) do record.recall[n] = neurons.same_thresholds.layer_recall[l] end
    if record.cosine == record.cosine then table.insert(root.by_layer, record) end
    if record.cosine == record.cosine and l > 2 then table.insert(root.behind, record) end
  end
end

return function(folder, name)
  local self, sample = page.open(folder, true), { name = name, results = results.open(folder .. "/" .. name, derive) }
  local findings = claims.judge(floe.findings, sample)
  self:begin(sample)
  self:agreement(findings)
  self:claims("goals", "Figures to reach", claims.judge(floe.goals, sample))
  self:claims("findings", "What the paper shows, and what is seen here", findings)
  self:add(ENTRIES)
  self:close("FloE: sparsity inside experts")
end
