-- FloE (arXiv:2505.05950): figures to reach, what the paper says, and the report about sparsity inside experts.
-- claims.lua tells what a claim is, page.lua what an entry of the page is.
local joins = require "joins"
local page = require "page"
local results = require "results"

-- ms a token with a plan, with bits alone, and with two bits and all experts in memory
local LENGTHS = { over = joins.cross { "length", { "16:32", "64:64", "128:64", "64:128" } },
  at = { plan = "length-plan-{length}:rows[1].tpot_ms_mean", static = "length-static-{length}:rows[1].tpot_ms_mean",
    two_bits = "length-int2-{length}:rows[1].tpot_ms_mean" } }

-- ms a token by the share of the memory for experts, with a plan, with all neurons, and with bits alone
local DECODING = { over = joins.cross { "share", { "25", "50", "75", "100" } },
  at = { plan = "decoding-plan-{share}:rows[1].tpot_ms_median" },
  may = { none = "decoding-none-{share}:rows[1].tpot_ms_median",
    static = "decoding-static-{share}:rows[1].tpot_ms_median" } }

-- ---- figures to reach ----

local goals = {
  { "section 4.2", "at least 1.25 times fewer bytes of experts a token than bits alone of the same promise",
    of = { plan = "plan-neuron:plan", static = "static:", promise = "static-compile:" },
    let = { ratio = "static.dense_expert_bytes_per_token / plan.expert_bytes_per_token" },
    says = "{ratio:2} times: {plan.expert_bytes_per_token:1K} KiB, proven to lose at most {plan.loss_high:2%} %, and "
      .. "{static.dense_expert_bytes_per_token:1K} KiB, {promise.loss_high:2%} %, of {plan.target:1%} % asked for",
    holds = "ratio >= 1.25",
    unless = "up is read whole, and of all neurons {plan.without.expert_bytes_per_token:1K} KiB are" },
  { "eq. 6",
    "a share of its own for each expert and neuron: at least 10 % fewer bytes than one share at the same promise",
    of = { neuron = "plan-neuron:plan", model = "plan-model:plan", expert = "plan-expert:plan" },
    let = { by_neuron = "less(neuron.expert_bytes_per_token, model.expert_bytes_per_token)",
      by_expert = "less(expert.expert_bytes_per_token, model.expert_bytes_per_token)" },
    says = "{by_neuron:1%} % fewer by neuron, {by_expert:1%} % by expert", holds = "by_neuron >= 0.1",
    unless = "the plans leave out {less(neuron.expert_bytes_per_token, neuron.without.expert_bytes_per_token):0%} and "
      .. "{less(model.expert_bytes_per_token, model.without.expert_bytes_per_token):0%} % of the bytes" },
  { "Fig. 4",
    "a learned predictor names at least 3 points more of the next layer's experts than its router asked early",
    of = { gain = "predictors:gain[1]", gate = "predictors:predictors[name=gate].precision[1]" },
    says = "{gain.value:1%} points more ({gain.low:1%} to {gain.high:1%})", holds = "gain.value >= 0.03",
    unless = "the router names {gate.value:0%} % already" },
  { each = { { at = 0.6, asked = 1.35 }, { at = 0.9, asked = 2 } },
    { "Table 1", "an expert of OLMoE's dimensions at sparsity {at}: at least {asked} times faster",
      of = { experts = { over = "kernels:experts", where = "math.abs(sparsity - at) <= 1e-3" } },
      let = { slowest = "least(experts, 'speedup')" },
      says = "{slowest:2} times, the least over bits and threads", holds = "slowest >= asked",
      unless = "its bytes alone would allow {1 / top(experts, '-speedup').bytes_share:2} times" } },
}

-- ---- what the paper says ----

-- What zeros or few bits cost, one projection at a time.
local function projections(figure, paper, study, level, holds)
  local path = "profile.h5:" .. study .. "/loss[%s, " .. level .. "]"
  return { figure, paper, of = { gate = path:format("gate"), up = path:format("up"), down = path:format("down") },
    says = "gate {gate:2%} %, up {up:2%} %, down {down:2%} %", holds = holds }
end

local RECALL = "predictors:neurons[%d].same_thresholds.recall[1].value"

local findings = {
  projections("Fig. 3a", "at sparsity 0.7 zeros cost least in what down reads, more in up, most in silu(gate), which "
    .. "CATS compares", "sparsity", 0.7, "down + 0 * gate <= up and up <= gate"),
  projections("Fig. 3a", "the same at sparsity 0.9", "sparsity", 0.9, "down + 0 * gate <= up and up <= gate"),
  -- Table 3 has averages of tasks at sparsities 0.8 and 0.9: CATS 0.657 and 0.559, CHESS 0.657 and 0.568, up of FloE
  -- 0.693 and 0.656.
  { each = { { level = 0.8 }, { level = 0.9 } },
    { "Fig. 10, Table 3", "at sparsity {level} the choice by up loses least, that of CHESS (a threshold for each "
      .. "neuron) no more than that of CATS",
      of = { up = "profile.h5:sparsity/loss[up, {level}]", cats = "profile.h5:sparsity/loss[gate, {level}]",
        chess = "profile.h5:sparsity/loss[gate by neuron, {level}]" },
      says = "up {up:2%} %, CHESS {chess:2%} %, CATS {cats:2%} %",
      holds = "up + 0 * cats <= chess and chess <= cats" } },
  { "Table 3", "FloE's choice outperforms those of CATS and CHESS; here plans that run, at one promise",
    of = { floe = "plan-floe:plan", cats = "plan-cats:plan", chess = "plan-chess:plan" },
    says = "KiB a token: FloE {floe.expert_bytes_per_token:1K}, CATS {cats.expert_bytes_per_token:1K}, CHESS "
      .. "{chess.expert_bytes_per_token:1K}, of {floe.without.expert_bytes_per_token:1K}",
    holds = "floe.expert_bytes_per_token <= math.min(cats.expert_bytes_per_token, chess.expert_bytes_per_token)" },
  { each = { { level = 0.8, bits = 3 }, { level = 0.9, bits = 2 } },
    { "Table 3", "FloE (up at two bits) at sparsity {level} loses less than HQQ INT{bits}",
      of = { mixed = "mixed-{level}:", plain = "int{bits}-0:", sparse = "int{bits}-0.5:" },
      says = "losses of {mixed.loss:2%} and {plain.loss:2%} %, {mixed.expert_bytes_per_token:1K} and "
        .. "{sparse.dense_expert_bytes_per_token:1K} KiB a token",
      holds = "mixed.loss <= plain.loss" } },
  projections("Fig. 3b", "at INT2 up loses least of the three projections", "projection", 2,
    "up <= math.min(gate, down)"),
  projections("Fig. 3b", "at INT1 too", "projection", 1, "up <= math.min(gate, down)"),
  { "Fig. 9b",
    "losses of bits and of sparsity largely add up: sparsity 0.7 costs at INT3 and INT4 at most one and a half times "
      .. "what it costs at INT8",
    of = { at_8 = "int8-0.7:", plain_8 = "int8-0:", at_4 = "int4-0.7:", plain_4 = "int4-0:", at_3 = "int3-0.7:",
      plain_3 = "int3-0:" },
    let = { int8 = "at_8.loss - plain_8.loss", int4 = "at_4.loss - plain_4.loss", int3 = "at_3.loss - plain_3.loss" },
    says = "INT8 {int8:2%} %, INT4 {int4:2%} %, INT3 {int3:2%} %", holds = "math.max(int4, int3) <= 1.5 * int8" },
  { "Fig. 4", "inputs of neighbouring layers have a similarity above 0.95, but for the first",
    of = { similarities = "predictors:behind" },
    says = "at least {least(similarities, 'cosine'):3} behind the first layer",
    holds = "least(similarities, 'cosine') > 0.95" },
  { "Fig. 4", "the learned predictor of experts has an average precision of 0.88",
    of = { learned = "predictors:predictors[name=learned].precision[1]",
      gate = "predictors:predictors[name=gate].precision[1]" },
    says = "{learned.value:3} with as many guesses as experts, {gate.value:3} by the gate",
    holds = "learned.value >= 0.88", unless = "the paper's model names two of eight experts" },
  { "Fig. 4", "reused up projections name active neurons with an average recall of 0.95",
    of = { at_5 = RECALL:format(1), at_7 = RECALL:format(3), at_9 = RECALL:format(5),
      similarities = "predictors:behind" },
    says = "{at_5:3} at sparsity 0.5, {at_7:3} at 0.7, {at_9:3} at 0.9", holds = "at_7 >= 0.95",
    unless = "inputs of neighbouring layers have a similarity of {least(similarities, 'cosine'):3} at least" },
  { "Fig. 6", "91 % of the speed of two bits with all experts in memory", of = { lengths = LENGTHS },
    says = "{mean(lengths, 'two_bits / plan'):0%} %, the mean over lengths, with a quarter of the memory",
    holds = "mean(lengths, 'two_bits / plan') >= 0.91" },
  { "Fig. 6", "2.60 times faster than a cache of quantised experts with the next layer's gate",
    of = { lengths = LENGTHS },
    says = "{mean(lengths, 'static / plan'):2} times, the mean over lengths, against bits alone of the same promise",
    holds = "mean(lengths, 'static / plan') >= 2.6" },
  { "Fig. 6", "longer outputs for fixed inputs give more tokens a second",
    of = { ms_64 = "length-plan-64:64:rows[1].tpot_ms_mean", ms_128 = "length-plan-64:128:rows[1].tpot_ms_mean" },
    says = "{1000 / ms_64:0} tokens/s for 64 of output behind 64, {1000 / ms_128:0} for 128",
    holds = "ms_128 < ms_64" },
  { "Fig. 7", "gate rows beside down columns improve the efficiency for all chunk sizes",
    of = { reads = { over = { over = "transfers:reads", is_steps = true },
      let = { gain = "to.bytes_per_second / from.bytes_per_second" } } },
    says = "requests of twice the size read at least {least(reads, 'gain'):2} times as fast, least at "
      .. "{top(reads, '-gain').to.bytes:0K} KiB",
    holds = "least(reads, 'gain') > 1" },
  { "Fig. 8", "more memory gives more speed, up to that of two bits with all experts in memory",
    of = { steps = { over = DECODING, is_steps = true }, two_bits = "length-int2-16:32:rows[1].tpot_ms_mean" },
    says = "{steps[1].from.plan:2}, {steps[1].to.plan:2}, {steps[2].to.plan:2} and {steps[3].to.plan:2} ms a token; "
      .. "{1000 / steps[3].to.plan:0} tokens/s against {1000 / two_bits:0} at last",
    holds = "steps[3].to.plan <= two_bits and count(steps, 'to.plan > from.plan') == 0" },
}

-- ---- the page ----

-- Table 7 has perplexities, of which those at INT8 stand for the original's: INT8, then INT1 to INT4.
local function given_loss(model, projection, original, ...)
  local row = { model, projection }
  for _, value in ipairs { ... } do table.insert(row, ("%.1f"):format((value / original - 1) * 100)) end
  return row
end

-- A bundle without a plan, whose bytes of all neurons another evaluation told.
local ALONE = { compares = "'–'", bytes = "told.dense_expert_bytes_per_token",
  dense = "told.dense_expert_bytes_per_token" }

local entries = {
  { "Fig. 2 and 3: what small activations and few bits cost", charts = "projection", records = "profile.h5:" },
  { charts = "sparsity", records = "profile.h5:" }, { charts = "up_quantiles", records = "profile.h5:" },
  { "Fig. 3b: bits, one projection at a time", name = "projections",
    records = { over = joins.cross { "projection", { "gate", "down", "up" } },
      at = { any = "profile.h5:projection/loss[{projection}, 2]",
        losses = { over = joins.cross { "bits", { 1, 2, 3, 4 } },
          may = { loss = "profile.h5:projection/loss[{projection}, {bits}]",
            loss_low = "profile.h5:projection/loss_low[{projection}, {bits}]",
            loss_high = "profile.h5:projection/loss_high[{projection}, {bits}]" } } } },
    columns = { "model: {projection == 'gate' and name or ''}", "projection: {projection}",
      "INT1, %: {interval(losses[1])}", "INT2, %: {interval(losses[2])}", "INT3, %: {interval(losses[3])}",
      "INT4, %: {interval(losses[4])}" },
    given = { given_loss("Mixtral-8x7B, the paper's", "gate", 5.119, 1130, 6.245, 5.310, 5.158),
      given_loss("", "down", 5.121, 1910, 14.36, 5.968, 5.270),
      given_loss("", "up", 5.119, 520.1, 6.177, 5.281, 5.151),
      given_loss("Qwen1.5-MoE-A2.7B, the paper's", "gate", 9.227, 102.0, 10.72, 9.364, 9.258),
      given_loss("", "down", 9.224, 138.4, 12.53, 9.655, 9.419),
      given_loss("", "up", 9.226, 71.06, 10.19, 9.426, 9.270) } },
  { "Table 1: one expert, sparse beside dense", name = "kernels", records = "kernels:experts",
    columns = { "up: {up}", "gate and down: {gate_and_down}", "sparsity: {sparsity:1}", "threads: {threads:0}",
      "dense, us: {dense_ns:1k}", "bytes, %: {bytes_share:1%}", "times faster: {speedup:2}" },
    given = { { "F16, the paper's", "H100", "0.5 to 0.9", "–", "–", "–", "1.26, 1.37, 1.48, 1.59, 1.64" },
      { "F16, the paper's", "A100", "0.5 to 0.9", "–", "–", "–", "1.30, 1.35, 1.44, 1.52, 1.63" },
      { "F16, the paper's", "A6000", "0.5 to 0.9", "–", "–", "–", "1.44, 1.56, 1.72, 1.89, 1.99" },
      { "F16, the paper's", "RTX 3090", "0.5 to 0.9", "–", "–", "–", "1.43, 1.53, 1.72, 1.80, 1.92" } } },
  { "Fig. 4: what a layer's input tells of the next layer",
    "Experts of this layer, as many as a token takes, by the input of the layer before: its router's choice, and a "
      .. "learned predictor's. Active neurons of these experts at a sparsity, by their up projections on that input.",
    name = "predictors", records = "predictors:by_layer",
    columns = { "layer: {layer:0}", "similarity of the inputs: {cosine:3}", "precision of the gate, %: {gate:1%}",
      "of what was learned, %: {learned:1%}", "recall at 0.5, %: {recall[1]:1%}", "at 0.6, %: {recall[2]:1%}",
      "at 0.7, %: {recall[3]:1%}", "at 0.8, %: {recall[4]:1%}", "at 0.9, %: {recall[5]:1%}" } },
  { "Fig. 9b: sparsity on top of bits", name = "levels",
    records = { at = { row = "{file[1]}-{level}:" }, over = joins.cross { "file", { { "int8", "int8" },
      { "int4", "int4" }, { "int3", "int3" }, { "int2", "int2" }, { "mixed", "up INT2, gate and down INT4" },
      { "signs", "up INT1, gate and down INT4" } }, "level", { "0", "0.5", "0.6", "0.7", "0.8", "0.9" } } },
    columns = { "experts: {file[2]}", "sparsity: {level == '0' and 'none' or level}",
      "loss on the test text, %: {loss:2%}", page.INTERVAL, "neurons active, %: {active_share:1%}",
      "KiB a token: {expert_bytes_per_token:1K}" } },
  { "Plans at one promise, and bits alone", name = "plans",
    records = {
      { over = { { words = "none: bits alone" } }, may = { proven = "static-compile:" },
        at = { test = "static:", told = "static:" }, let = ALONE },
      { over = { { file = "neuron", words = "by each neuron's harm and the token's gate weight" },
          { file = "expert", words = "by a threshold for each expert" },
          { file = "model", words = "one share for all experts" },
          { file = "floe", words = "FloE: one share for all experts" },
          { file = "cats", words = "CATS: one share for all experts" },
          { file = "chess", words = "CHESS: by neuron, with the token's gate weight" } },
        at = { proven = "plan-{file}:plan", test = "plan-{file}-test:" },
        let = { compares = "proven.projection == 'gate' and 'the gate' or '|up . x|'",
          bytes = "proven.expert_bytes_per_token", dense = "proven.without.expert_bytes_per_token" } },
      { over = { { bits = 4, words = "none: HQQ, int4, without a promise" },
          { bits = 3, words = "none: HQQ, int3, without a promise" },
          { bits = 2, words = "none: HQQ, int2, without a promise" } },
        at = { test = "int{bits}-0:", told = "int{bits}-0.5:" }, let = ALONE } },
    columns = { "neurons left out: {words}", "compares: {compares}", "certificate, %: {proven.loss:2%}",
      "its interval, %: {range(proven)}", "on the test text: {test.loss:2%}", "its interval, %: {range(test)}",
      "KiB a token: {bytes:1K}", "with all neurons: {dense:1K}" } },
  { "Fig. 6: tokens a second by length, a quarter of the experts' memory", name = "lengths", records = LENGTHS,
    columns = { "prompt:decoded: {length}", "tokens/s: {1000 / plan:0}",
      "bits alone, LRU and gate: {1000 / static:0}", "two bits, all in memory: {1000 / two_bits:0}",
      "times faster: {static / plan:2}", "of two bits, %: {two_bits / plan:0%}" },
    given = { { "Mixtral-8x7B, the paper's mean", "–", "Mixtral-Offloading", "HQQ INT2 on the GPU", "2.60", "91" } } },
  { "Fig. 7: bandwidth by the size of a request, this machine's storage",
    "Random reads past the page cache, 32 at once, where the paper copies to a GPU. A pair is a gate row beside its "
      .. "down column, at INT4; apart from each other they would be requests of half the size.",
    name = "transfers", records = { over = "transfers:reads", may = { all = "transfers:reads" } },
    columns = { "KiB a request: {bytes:0K}", "pairs of OLMoE-1B-7B: {bytes / 2304:1}", -- at INT4 in groups of 32
      "MB/s: {bytes_per_second:0M}", "of the fastest, %: {bytes_per_second / most(all, 'bytes_per_second'):0%}" } },
  { "Fig. 8: decoding by memory, on storage of 550 MB/s, 80 us",
    "Records are read whole from storage: what a plan saves here is memory bandwidth and computing.",
    name = "decoding", records = DECODING,
    columns = { "memory for experts, %: {share}", "ms a token: {plan:3}", "with all neurons: {none:3}",
      "bits alone, LRU and gate: {static:3}", "times faster than all neurons: {none / plan:2}",
      "than bits alone: {static / plan:2}" } },
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

return {
  title = "FloE: sparsity inside experts", goals = goals, papers = { { findings = findings, entries = entries } },
  read = function(folder, name)
    return { { name = name, results = results.open(folder .. "/" .. name, derive) } }
  end,
}
