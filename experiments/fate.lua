-- Fate (Fang et al., arXiv:2502.12224): what the paper says. claims.lua tells what a claim is.
local joins = require "joins"
local measures = require "fate_measures"
local tasks = require "decisions_tasks"

local PAIR = " (here {bits} to {low_bits} bits"

-- All prompts and memories that were timed of a side and of Fate's.
local function against(side, rate)
  return { over = measures.PLACES, at = { theirs = measures.timed(side, rate), fate = measures.timed("fate", rate) } }
end

-- How much faster Fate is than load on demand and activation paths; `key` is of a prompt's time, or of a token's.
local function up_to(figure, what, key, rate, demand, paths)
  local times = "'theirs." .. key .. " / fate." .. key .. "'"
  local machine = rate > 100 and "faster machine (here 550 MB/s): " or "slower machine (here 50 MB/s): "
  return { figure,
    machine .. what .. " up to " .. demand .. " times faster than load on demand and up to " .. paths
      .. " times faster than activation paths",
    of = { demand = against("demand", rate), paths = against("paths", rate), int4 = against("demand_int4", rate) },
    let = { by_demand = "most(demand, " .. times .. ")", by_paths = "most(paths, " .. times .. ")" },
    says = "up to {by_demand:2} times and up to {by_paths:2} times; load on demand of INT4 up to {most(int4, "
      .. times .. "):2} times",
    holds = "#demand * #paths > 0 and math.min(by_demand - " .. demand .. ", by_paths - " .. paths .. ") >= 0" }
end

-- In how many of the cases that is so.
local function always(figure, paper, key, rate)
  local faster = "'theirs." .. key .. " > fate." .. key .. "'"
  return { figure, paper, of = { demand = against("demand", rate), paths = against("paths", rate) },
    let = { n_demand = "count(demand, " .. faster .. ")", n_paths = "count(paths, " .. faster .. ")" },
    says = rate .. " MB/s: faster than load on demand in {n_demand} of {#demand}, than activation paths in {n_paths} "
      .. "of {#paths}",
    holds = "n_demand + n_paths == #demand + #paths" }
end

local PROMPTS = "prompts: Fate consistently outperforms the baselines across diverse scenarios"
local TOKENS = "tokens: across all settings Fate is faster than the other strategies"

-- Behind prompts of 128 tokens.
local function timed(side, memory, rate)
  return (measures.timed(side, rate):gsub("{prompt}", 128):gsub("{memory}", memory))
end

local LITTLE = {
  demand = timed("demand", 12.5, 50), int4 = timed("demand_int4", 12.5, 50), paths = timed("paths", 12.5, 50),
  fate = timed("fate", 12.5, 50),
}

local function components(rate)
  return { "Fig. 14", "decoding gets faster with each component (there preloads first, then cache and quantisation)",
    of = { demand = timed("demand", 50, rate), cached = timed("cached", 50, rate),
      int4 = timed("cached_int4", 50, rate), fate = timed("fate", 50, rate) },
    says = rate .. " MB/s, half of the experts: on demand {demand.tpot_ms_median:3} ms, with a cache "
      .. "{cached.tpot_ms_median:3}, at INT4 {int4.tpot_ms_median:3}, with preloads {fate.tpot_ms_median:3}",
    holds = "math.max(fate.tpot_ms_median - int4.tpot_ms_median, int4.tpot_ms_median - cached.tpot_ms_median, "
      .. "cached.tpot_ms_median - demand.tpot_ms_median) < 0" }
end

local ORDERS = { -- the figure's two orders, at the shares where they name other experts
  over = joins.cross { "share", { "0.25", "0.5", "0.75" } },
  at = { least = "prefill-{widths}/whole-{share}:", most = "prefill-{widths}/popular-{share}:" },
}

local MMLU = "all experts at INT8 lose 0, at INT4 0.2 and at INT2 4.5 points of 59.6 % of MMLU; here "

return {
  { each = "pairs",
    { "Table 3",
      "low copies at mispredictions, over 3 % of accuracy on the slower machine; here perplexity" .. PAIR .. ")",
      of = { point = "pair-{widths}/fate-{quarter}-{half}:" },
      says = "a quarter foreseen, half of the experts cached: {interval(point)} %, {point.low_share:1%} % low" } },
  { "Fig. 9", "30 % of the experts that a prompt takes cover only 15 % of its tokens (in layer 6, for instance)",
    of = { layers = measures.popular(0.3), profile = "profile.h5:" },
    says = "prompts of {profile.seq_len_tokens} tokens take {mean(layers, 'active'):1} of {n_expert} experts; the 30 "
      .. "% least popular cover {mean(layers, 'share'):1%} % of their tokens, by layer {least(layers, 'share'):1%} to "
      .. "{most(layers, 'share'):1%} %",
    holds = "layers[1].active > 0 and least(layers, 'share') <= 0.15" },
  { each = "pairs",
    { "Fig. 10",
      "the 25 % least popular experts of a prompt in the low copy lose less than 1 %" .. PAIR .. ", perplexity)",
      of = { quarter = "prefill-{widths}/whole-0.25:", all = "prefill-{widths}/whole-1:" },
      says = "{interval(quarter)} %; all of them {all.loss:2%} %", holds = "quarter.loss < 0.01" } },
  { each = "pairs",
    { "Fig. 10",
      "non-popular experts at INT2 have minimal impact, in contrast popular ones give a significant drop" .. PAIR
        .. ", perplexity)",
      of = { orders = ORDERS },
      says = "{orders[1].least.setting} {interval(orders[1].least)} %, {orders[1].most.setting} "
        .. "{interval(orders[1].most)} %; popular ones lose more, intervals apart, at {count(orders, 'most.loss_low > "
        .. "least.loss_high')} of {#orders} shares",
      holds = "count(orders, 'most.loss_low > least.loss_high') == #orders" } },
  up_to("Fig. 11", "prompts", "ttft_ms", 550, 4.5, 1.9), always("Fig. 11", PROMPTS, "ttft_ms", 550),
  up_to("Fig. 11", "prompts", "ttft_ms", 50, 1.8, 1.5), always("Fig. 11", PROMPTS, "ttft_ms", 50),
  up_to("Fig. 12", "tokens", "tpot_ms_median", 550, 4.1, 2.2), always("Fig. 12", TOKENS, "tpot_ms_median", 550),
  up_to("Fig. 12", "tokens", "tpot_ms_median", 50, 2.3, 1.6), always("Fig. 12", TOKENS, "tpot_ms_median", 50),
  { "Fig. 13", "with little memory activation paths are slower than load on demand", of = LITTLE,
    says = "12.5 % of the experts, 50 MB/s, both INT4: {paths.tpot_ms_median:3} against {int4.tpot_ms_median:3} ms a "
      .. "token",
    holds = "paths.tpot_ms_median > int4.tpot_ms_median",
    unless = "paths read {paths.bytes_per_token / 1024:1}, load on demand {int4.bytes_per_token / 1024:1} KiB a "
      .. "token" },
  { "Fig. 13", "where most experts are offloaded Fate is up to 1.8 times faster than load on demand", of = LITTLE,
    says = "12.5 % of the experts, 50 MB/s: {demand.tpot_ms_median / fate.tpot_ms_median:2} times, "
      .. "{int4.tpot_ms_median / fate.tpot_ms_median:2} times that of INT4",
    holds = "demand.tpot_ms_median / fate.tpot_ms_median >= 1.8" },
  components(550), components(50),
  { "Table 2", MMLU .. "perplexity, rounded by channel",
    of = { int8 = "profile.h5:uniform[bits=8].loss", int4 = "profile.h5:uniform[bits=4].loss",
      int2 = "profile.h5:uniform[bits=2].loss" },
    says = "INT8 {int8:2%} %, INT4 {int4:2%} %, INT2 {int2:2%} %" },
  { each = "pairs",
    { "Table 3",
      "less than 1 % of accuracy on the faster machine, over 3 % on the slower one" .. PAIR .. ", perplexity)",
      of = { high = "prefill-{widths}/high-end-0.25:", low = "prefill-{widths}/low-end-0.25:" },
      says = "a quarter of a prompt's experts low: {interval(high)} %; with mispredictions low, too: {interval(low)} "
        .. "%" } },
  { "Table 2", MMLU .. "mean of tasks",
    of = { int8 = tasks.side "int8", int4 = tasks.side "int4", int2 = tasks.side "int2" },
    says = "INT8 {mean(int8, 'reference - value'):1%}, INT4 {mean(int4, 'reference - value'):1%} and INT2 {mean(int2, "
      .. "'reference - value'):1%} points, mean of {#int2} tasks" },
  { "Table 3", "an average accuracy loss of less than 1 % on the faster machine",
    of = { tasks = tasks.side "fate-high" }, says = "{mean(tasks, 'loss'):2%} %: " .. tasks.SCORES,
    holds = "mean(tasks, 'loss') < 0.01" },
  { "Table 3", "on the slower machine the actual score falls by less than 2 points (there a loss of over 3 %)",
    of = { tasks = tasks.side "fate-low" },
    says = "{mean(tasks, 'loss'):2%} %, {mean(tasks, 'reference - value'):2%} points: " .. tasks.SCORES,
    holds = "mean(tasks, 'reference - value') < 0.02" },
}
