-- FloE (arXiv:2505.05950): figures to reach, and what the paper says. claims.lua tells what a claim is.
local joins = require "joins"

-- The experts of moec bench --kernels at a sparsity, by bits and threads.
local function kernels(sparsity, least)
  return { "Table 1",
    "an expert of OLMoE's dimensions at sparsity " .. sparsity .. ": at least " .. least .. " times faster",
    of = { experts = { over = "kernels:experts", where = "math.abs(sparsity - " .. sparsity .. ") <= 1e-3" } },
    says = "{least(experts, 'speedup'):2} times, the least over bits and threads",
    holds = "least(experts, 'speedup') >= " .. least,
    unless = "its bytes alone would allow {1 / top(experts, '-speedup').bytes_share:2} times" }
end

local goals = {
  { "section 4.2", "at least 1.25 times fewer bytes of experts a token than bits alone of the same promise",
    of = { plan = "plan-neuron:plan", static = "static:", promise = "static-compile:" },
    says = "{static.dense_expert_bytes_per_token / plan.expert_bytes_per_token:2} times: {plan.expert_bytes_per_token "
      .. "/ 1024:1} KiB, proven to lose at most {plan.loss_high:2%} %, and {static.dense_expert_bytes_per_token / "
      .. "1024:1} KiB, {promise.loss_high:2%} %, of {plan.target:1%} % asked for",
    holds = "static.dense_expert_bytes_per_token / plan.expert_bytes_per_token >= 1.25",
    unless = "up is read whole, and of all neurons {plan.without.expert_bytes_per_token / 1024:1} KiB are" },
  { "eq. 6",
    "a share of its own for each expert and neuron: at least 10 % fewer bytes than one share at the same promise",
    of = { neuron = "plan-neuron:plan", model = "plan-model:plan", expert = "plan-expert:plan" },
    says = "{1 - neuron.expert_bytes_per_token / model.expert_bytes_per_token:1%} % fewer by neuron, {1 - "
      .. "expert.expert_bytes_per_token / model.expert_bytes_per_token:1%} % by expert",
    holds = "1 - neuron.expert_bytes_per_token / model.expert_bytes_per_token >= 0.1",
    unless = "the plans leave out {1 - neuron.expert_bytes_per_token / neuron.without.expert_bytes_per_token:0%} and "
      .. "{1 - model.expert_bytes_per_token / model.without.expert_bytes_per_token:0%} % of the bytes" },
  { "Fig. 4",
    "a learned predictor names at least 3 points more of the next layer's experts than its router asked early",
    of = { gain = "predictors:gain[1]", gate = "predictors:predictors[name=gate].precision[1]" },
    says = "{gain.value:1%} points more ({gain.low:1%} to {gain.high:1%})", holds = "gain.value >= 0.03",
    unless = "the router names {gate.value:0%} % already" },
  kernels(0.6, 1.35), kernels(0.9, 2),
}

-- What zeros or few bits cost, one projection at a time.
local function projections(figure, paper, study, level, holds)
  local path = "profile.h5:" .. study .. "/loss[%s, " .. level .. "]"
  return { figure, paper, of = { gate = path:format("gate"), up = path:format("up"), down = path:format("down") },
    says = "gate {gate:2%} %, up {up:2%} %, down {down:2%} %", holds = holds }
end

-- Table 3 has averages of tasks at sparsities 0.8 and 0.9: CATS 0.657 and 0.559, CHESS 0.657 and 0.568, up of FloE
-- 0.693 and 0.656.
local function methods(level)
  local path = "profile.h5:sparsity/loss[%s, " .. level .. "]"
  return { "Fig. 10, Table 3",
    "at sparsity " .. level .. " the choice by up loses least, that of CHESS (a threshold for each neuron) no more "
      .. "than that of CATS",
    of = { up = path:format("up"), chess = path:format("gate by neuron"), cats = path:format("gate") },
    says = "up {up:2%} %, CHESS {chess:2%} %, CATS {cats:2%} %", holds = "up + 0 * cats <= chess and chess <= cats" }
end

-- FloE's mixture of bits and sparsity beside HQQ of fewer bits.
local function quantised(level, bits)
  return { "Table 3", "FloE (up at two bits) at sparsity " .. level .. " loses less than HQQ INT" .. bits,
    of = { mixed = "mixed-" .. level .. ":", plain = "int" .. bits .. "-0:", sparse = "int" .. bits .. "-0.5:" },
    says = "losses of {mixed.loss:2%} and {plain.loss:2%} %, {mixed.expert_bytes_per_token / 1024:1} and "
      .. "{sparse.dense_expert_bytes_per_token / 1024:1} KiB a token",
    holds = "mixed.loss <= plain.loss" }
end

local LENGTHS = { -- ms a token with a plan, with bits alone, and with two bits and all experts in memory
  over = joins.cross { "length", { "16:32", "64:64", "128:64", "64:128" } },
  at = { plan = "length-plan-{length}:rows[1].tpot_ms_mean", static = "length-static-{length}:rows[1].tpot_ms_mean",
    two_bits = "length-int2-{length}:rows[1].tpot_ms_mean" },
}

-- ms a token by the share of the memory for experts, with a plan, with all neurons, and with bits alone
local DECODING = {
  over = joins.cross { "share", { "25", "50", "75", "100" } },
  at = { plan = "decoding-plan-{share}:rows[1].tpot_ms_median" },
  may = { none = "decoding-none-{share}:rows[1].tpot_ms_median",
    static = "decoding-static-{share}:rows[1].tpot_ms_median" },
}

local READS = { over = "transfers:reads", is_steps = true }
local GAIN = "to.bytes_per_second / from.bytes_per_second"

local RECALL = "predictors:neurons[%d].same_thresholds.recall[1].value"

local findings = {
  projections("Fig. 3a", "at sparsity 0.7 zeros cost least in what down reads, more in up, most in silu(gate), which "
    .. "CATS compares", "sparsity", 0.7, "down + 0 * gate <= up and up <= gate"),
  projections("Fig. 3a", "the same at sparsity 0.9", "sparsity", 0.9, "down + 0 * gate <= up and up <= gate"),
  methods(0.8), methods(0.9),
  { "Table 3", "FloE's choice outperforms those of CATS and CHESS; here plans that run, at one promise",
    of = { floe = "plan-floe:plan", cats = "plan-cats:plan", chess = "plan-chess:plan" },
    says = "KiB a token: FloE {floe.expert_bytes_per_token / 1024:1}, CATS {cats.expert_bytes_per_token / 1024:1}, "
      .. "CHESS {chess.expert_bytes_per_token / 1024:1}, of {floe.without.expert_bytes_per_token / 1024:1}",
    holds = "floe.expert_bytes_per_token <= math.min(cats.expert_bytes_per_token, chess.expert_bytes_per_token)" },
  quantised(0.8, 3), quantised(0.9, 2),
  projections("Fig. 3b", "at INT2 up loses least of the three projections", "projection", 2, "up <= math.min(gate, "
    .. "down)"),
  projections("Fig. 3b", "at INT1 too", "projection", 1, "up <= math.min(gate, down)"),
  { "Fig. 9b",
    "losses of bits and of sparsity largely add up: sparsity 0.7 costs at INT3 and INT4 at most one and a half times "
      .. "what it costs at INT8",
    of = { at_8 = "int8-0.7:", plain_8 = "int8-0:", at_4 = "int4-0.7:", plain_4 = "int4-0:", at_3 = "int3-0.7:",
      plain_3 = "int3-0:" },
    says = "INT8 {at_8.loss - plain_8.loss:2%} %, INT4 {at_4.loss - plain_4.loss:2%} %, INT3 {at_3.loss - "
      .. "plain_3.loss:2%} %",
    holds = "math.max(at_4.loss - plain_4.loss, at_3.loss - plain_3.loss) <= 1.5 * (at_8.loss - plain_8.loss)" },
  { "Fig. 4", "inputs of neighbouring layers have a similarity above 0.95, but for the first",
    of = { similarities = { over = "predictors:behind" } },
    says = "at least {least(similarities, 'cosine'):3} behind the first layer",
    holds = "least(similarities, 'cosine') > 0.95" },
  { "Fig. 4", "the learned predictor of experts has an average precision of 0.88",
    of = { learned = "predictors:predictors[name=learned].precision[1]",
      gate = "predictors:predictors[name=gate].precision[1]" },
    says = "{learned.value:3} with as many guesses as experts, {gate.value:3} by the gate",
    holds = "learned.value >= 0.88", unless = "the paper's model names two of eight experts" },
  { "Fig. 4", "reused up projections name active neurons with an average recall of 0.95",
    of = { at_5 = RECALL:format(1), at_7 = RECALL:format(3), at_9 = RECALL:format(5),
      similarities = { over = "predictors:behind" } },
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
  { "Fig. 7", "gate rows beside down columns improve the efficiency for all chunk sizes", of = { reads = READS },
    says = "requests of twice the size read at least {least(reads, '" .. GAIN .. "'):2} times as fast, least at "
      .. "{top(reads, '-" .. GAIN .. "').to.bytes / 1024:0} KiB",
    holds = "least(reads, '" .. GAIN .. "') > 1" },
  { "Fig. 8", "more memory gives more speed, up to that of two bits with all experts in memory",
    of = { steps = { over = DECODING.over, at = { ms = DECODING.at.plan }, is_steps = true },
      two_bits = "length-int2-16:32:rows[1].tpot_ms_mean" },
    says = "{steps[1].from.ms:2}, {steps[1].to.ms:2}, {steps[2].to.ms:2} and {steps[3].to.ms:2} ms a token; {1000 / "
      .. "steps[3].to.ms:0} tokens/s against {1000 / two_bits:0} at last",
    holds = "steps[3].to.ms <= two_bits and count(steps, 'to.ms > from.ms') == 0" },
}

return { goals = goals, findings = findings, LENGTHS = LENGTHS, DECODING = DECODING }
