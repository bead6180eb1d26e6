-- Fate (Fang et al., arXiv:2502.12224): what the paper says, and the tables and charts of its part of the report.
-- claims.lua tells what a claim is, page.lua what an entry of the page is.
local joins = require "joins"
local page = require "page"
local tasks = require "decisions_tasks"

-- Tokens of a prompt, and memory in per cent of the experts at INT4.
local PLACES = joins.cross { "prompt", { 128, 256, 512 }, "memory", { 12.5, 25, 50, 75 } }

local STRATEGIES = { -- in words, their files and modes
  { "load on demand, 16 bits", "others", "io-exp" }, { "load on demand, INT4", "others", "lod" },
  { "16 bits with a cache", "others", "io-exp+lru" }, { "INT4 with a cache", "none", "cache" },
  { "activation paths, INT4", "others", "eap" }, { "Fate", "gate", "cache" },
  { "Fate, INT2 at mispredictions", "low", "cache" },
}

-- Paths of what was timed.
local function timed(file, mode) return "fate/" .. file .. "-{prompt}:rows[" .. mode .. " {memory} {rate}]" end
local DEMAND, DEMAND_INT4, CACHED = timed("others", "io-exp"), timed("others", "lod"), timed("others", "io-exp+lru")
local CACHED_INT4, PATHS, FATE = timed("none", "cache"), timed("others", "eap"), timed("gate", "cache")

-- Share of the sum that the first `n` of ascending counts have; n may be between two.
local function first_share(counts, n)
  local taken, sum = 0, 0
  for e, count in ipairs(counts) do
    taken, sum = taken + count * math.max(0, math.min(1, n - (e - 1))), sum + count
  end
  return taken / sum
end

-- By layer, how many experts a prompt takes, and of these the tenth, the three tenths and the half that fewest of its
-- tokens take: the share of the tokens' choices that goes to them; means over the windows of a profile, each a prompt.
local function popular(sample)
  local layers, parts = {}, { 0.1, 0.3, 0.5 }
  for _, window in ipairs(sample.profile and sample.profile.prompts or {}) do
    for layer, taken in ipairs(window) do
      local one, counts = layers[layer] or { layer = layer, n = 0, active = 0, shares = { 0, 0, 0 } }, {}
      layers[layer] = one
      for _, count in pairs(taken) do table.insert(counts, count) end
      table.sort(counts)
      if #counts > 0 then
        one.n, one.active = one.n + 1, one.active + #counts
        for p, part in ipairs(parts) do one.shares[p] = one.shares[p] + first_share(counts, part * #counts) end
      end
    end
  end
  for _, one in ipairs(layers) do
    one.active = one.active / one.n
    for p = 1, #parts do one.shares[p] = one.shares[p] / one.n end
  end
  return layers
end

-- ---- claims ----

local PAIR = " (here {bits} to {low_bits} bits"

-- How much faster Fate is, in all cases that were timed of both, with prompts and with tokens.
local function against(side)
  return { over = PLACES, at = { theirs = side, fate = FATE },
    let = { prompts = "theirs.ttft_ms / fate.ttft_ms", tokens = "times(fate, theirs)" } }
end

local DIVERSE = "Fate consistently outperforms the baselines across diverse scenarios"
local ALL = "across all settings Fate is faster than the other strategies"
local LITTLE = { demand = DEMAND, int4 = DEMAND_INT4, paths = PATHS, fate = FATE }
local MMLU = "all experts at INT8 lose 0, at INT4 0.2 and at INT2 4.5 points of 59.6 % of MMLU; here "

local findings = {
  { each = "pairs",
    { "Table 3",
      "low copies at mispredictions, over 3 % of accuracy on the slower machine; here perplexity" .. PAIR .. ")",
      of = { point = "pair-{widths}/fate-{quarter}-{half}:" },
      says = "a quarter foreseen, half of the experts cached: {interval(point)} %, {point.low_share:1%} % low" } },
  { "Fig. 9", "30 % of the experts that a prompt takes cover only 15 % of its tokens (in layer 6, for instance)",
    of = { layers = popular, profile = "profile.h5:" },
    says = "prompts of {profile.seq_len_tokens} tokens take {mean(layers, 'active'):1} of {n_expert} experts; the 30 "
      .. "% least popular cover {mean(layers, 'shares[2]'):1%} % of their tokens, by layer {least(layers, "
      .. "'shares[2]'):1%} to {most(layers, 'shares[2]'):1%} %",
    holds = "layers[1].active > 0 and least(layers, 'shares[2]') <= 0.15" },
  { each = "pairs",
    { "Fig. 10",
      "the 25 % least popular experts of a prompt in the low copy lose less than 1 %" .. PAIR .. ", perplexity)",
      of = { quarter = "prefill-{widths}/whole-0.25:", all = "prefill-{widths}/whole-1:" },
      says = "{interval(quarter)} %; all of them {all.loss:2%} %", holds = "quarter.loss < 0.01" } },
  { each = "pairs", -- the figure's two orders, at the shares where they name other experts
    { "Fig. 10", "non-popular experts at INT2 have minimal impact, in contrast popular ones give a significant drop"
      .. PAIR .. ", perplexity)",
      of = { orders = { over = joins.cross { "share", { "0.25", "0.5", "0.75" } },
        at = { least = "prefill-{widths}/whole-{share}:", most = "prefill-{widths}/popular-{share}:" } } },
      let = { n_apart = "count(orders, 'most.loss_low > least.loss_high')" },
      says = "{orders[1].least.setting} {interval(orders[1].least)} %, {orders[1].most.setting} "
        .. "{interval(orders[1].most)} %; popular ones lose more, intervals apart, at {n_apart} of {#orders} shares",
      holds = "n_apart == #orders" } },
  { each = {
      { figure = "Fig. 11", what = "prompts", rate = 550, demanded = 4.5, pathed = 1.9, always = DIVERSE },
      { figure = "Fig. 11", what = "prompts", rate = 50, demanded = 1.8, pathed = 1.5, always = DIVERSE },
      { figure = "Fig. 12", what = "tokens", rate = 550, demanded = 4.1, pathed = 2.2, always = ALL },
      { figure = "Fig. 12", what = "tokens", rate = 50, demanded = 2.3, pathed = 1.6, always = ALL } },
    { "{figure}", "{rate > 100 and 'faster' or 'slower'} machine (here {rate} MB/s): {what} up to {demanded} times "
      .. "faster than load on demand and up to {pathed} times faster than activation paths",
      of = { demand = against(DEMAND), paths = against(PATHS), int4 = against(DEMAND_INT4) },
      says = "up to {most(demand, what):2} times and up to {most(paths, what):2} times; load on demand of INT4 up to "
        .. "{most(int4, what):2} times",
      holds = "#demand * #paths > 0 and most(demand, what) >= demanded and most(paths, what) >= pathed" },
    { "{figure}", "{what}: {always}", of = { demand = against(DEMAND), paths = against(PATHS) },
      let = { n_demand = "count(demand, what .. ' > 1')", n_paths = "count(paths, what .. ' > 1')" },
      says = "{rate} MB/s: faster than load on demand in {n_demand} of {#demand}, than activation paths in {n_paths} "
        .. "of {#paths}",
      holds = "n_demand + n_paths == #demand + #paths" } },
  { each = { { prompt = 128, memory = 12.5, rate = 50 } },
    { "Fig. 13", "with little memory activation paths are slower than load on demand", of = LITTLE,
      says = "12.5 % of the experts, 50 MB/s, both INT4: {paths.tpot_ms_median:3} against {int4.tpot_ms_median:3} ms a "
        .. "token",
      holds = "paths.tpot_ms_median > int4.tpot_ms_median",
      unless = "paths read {paths.bytes_per_token:1K}, load on demand {int4.bytes_per_token:1K} KiB a token" },
    { "Fig. 13", "where most experts are offloaded Fate is up to 1.8 times faster than load on demand", of = LITTLE,
      says = "12.5 % of the experts, 50 MB/s: {times(fate, demand):2} times, {times(fate, int4):2} times that of INT4",
      holds = "times(fate, demand) >= 1.8" } },
  { each = { { prompt = 128, memory = 50, rate = 550 }, { prompt = 128, memory = 50, rate = 50 } },
    { "Fig. 14", "decoding gets faster with each component (there preloads first, then cache and quantisation)",
      of = { demand = DEMAND, cached = CACHED, int4 = CACHED_INT4, fate = FATE },
      says = "{rate} MB/s, half of the experts: on demand {demand.tpot_ms_median:3} ms, with a cache "
        .. "{cached.tpot_ms_median:3}, at INT4 {int4.tpot_ms_median:3}, with preloads {fate.tpot_ms_median:3}",
      holds = "math.min(times(fate, int4), times(int4, cached), times(cached, demand)) > 1" } },
  { "Table 2", MMLU .. "perplexity, rounded by channel",
    of = { int8 = "profile:uniform[bits=8].loss", int4 = "profile:uniform[bits=4].loss",
      int2 = "profile:uniform[bits=2].loss" },
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

-- ---- the page ----

-- Points whose files begin so, by rising shares, behind none.
local function way(beginning, words)
  return { by = "share", with = { words = words }, over = {
    { over = { { share = 0, loss = 0, loss_low = 0, loss_high = 0 } } },
    { over = "prefill-{widths}/*", where = "file:find('^" .. beginning .. "%-')",
      let = { share = "tonumber(file:match('[%d.]*$'))" } } } }
end

-- Strategies, each at all of the places, at the rate of the record.
local function strategies(prompts, memories)
  return { over = joins.cross { "strategy", STRATEGIES, "prompt", prompts, "memory", memories }, where = "#fate > 0",
    may = { row = timed("{strategy[2]}", "{strategy[3]}") } }
end

local entries = {
  { "Fate, Fig. 9: tokens of a prompt by popularity of their experts", name = "popular", records = popular,
    columns = { "MoE layer: {layer}", "experts that a prompt takes: {active:1}",
      "tokens of the 10 % least popular, %: {shares[1]:1%}", "of the 30 % least popular, %: {shares[2]:1%}",
      "of the 50 % least popular, %: {shares[3]:1%}" },
    given = { { "Qwen1.5-MoE, the paper's, layer 6", "55.9 of 60 on average", "–", "15", "–" } } },
  { kind = "lines", name = "popular_experts", title = "Tokens of a prompt that its least popular experts cover",
    source = "Fate, Fig. 9", x = { "layer", "MoE layer", "layer", is_whole = true }, by = "{words} % least popular",
    y = { "tokens_percent", "choices of a prompt's tokens, %", "100 * share", has_zero = true },
    records = { { over = popular, with = { words = "10" }, let = { share = "shares[1]" } },
      { over = popular, with = { words = "30" }, let = { share = "shares[2]" } },
      { over = popular, with = { words = "50" }, let = { share = "shares[3]" } } }, of = { profile = "profile.h5:" },
    caption = "Of the experts that a prompt takes, each window of {profile.seq_len_tokens} tokens being a prompt." },
  { each = "pairs",
    { "Fate, Fig. 10 and Table 3: prompts of INT{bits} with unpopular experts at INT{low_bits}",
      "A quarter of the experts in memory. 'unpopular' goes by what calibration and earlier blocks of the prompt took, "
        .. "'whole' by the prompt's own counts, 'popular' by these the other way round. Blocks of half a window: the "
        .. "other half is not a prompt, as on the paper's two machines.",
      name = "prefill_{bits}_{low_bits}",
      records = { may = { fast = "prefill-{widths}-times/{file}:rows[cache 25 550]",
          slow = "prefill-{widths}-times/{file}:rows[cache 25 50]" },
        over = { { over = { { file = "none", setting = "no low copies", taken_low_share = 0, loss = 0 } } },
          "prefill-{widths}/*" } },
      columns = { "prompts: {setting}", "low, % of choices: {taken_low_share:1%}", page.LOSS, page.INTERVAL,
        "KiB a prompt: {fast.prompt_bytes:1K}", "ms at 550 MB/s: {fast.ttft_ms:2}",
        "its floor, ms: {fast.prompt_floor_ms:2}", "ms at 50 MB/s: {slow.ttft_ms:2}",
        "its floor, ms: {slow.prompt_floor_ms:2}" } },
    { kind = "lines", name = "unpopular_{bits}_{low_bits}", source = "Fate, Fig. 10", by = "{words}",
      title = "Loss by the share of a prompt's experts in INT{low_bits} instead of INT{bits}",
      records = { way("whole", "by the whole prompt's counts"), way("unpopular", "by calibration's counts"),
        way("popular", "most popular first, by the whole prompt's counts") },
      x = { "share_percent", "experts of a layer in the low copy, %", "100 * share" }, has_interval = true,
      y = { "loss_percent", "loss of perplexity, %", "100 * loss", has_zero = true },
      caption = "Every token is a prompt's. The paper's figure has the first and the last line." } },
  { "Fate, Table 2: all experts at one bitwidth", name = "bits",
    records = { over = "profile:uniform", let = { model = "name", order = "-bits" }, by = "order" },
    columns = { "bits of all experts: {bits}", "model: {model}",
      "loss, % (perplexity; the paper's: MMLU): {loss:2%}" },
    given = { { "8", "Qwen1.5-MoE, the paper's", "0" }, { "4", "Qwen1.5-MoE, the paper's", "0.3" },
      { "2", "Qwen1.5-MoE, the paper's", "7.6" } } },
  { each = { { rate = 550 }, { rate = 50 } },
    { "Fate, Fig. 11 to 14: prompts and tokens at {rate} MB/s", name = "fate_{rate}",
      records = { over = joins.cross({ "strategy", STRATEGIES }, PLACES),
        at = { row = timed("{strategy[2]}", "{strategy[3]}") } },
      columns = { "prompt, tokens: {prompt}", "memory, % of INT4 experts: {memory}", "strategy: {strategy[1]}",
        page.PROMPT, "prompt, tokens a second: {1000 * prompt / ttft_ms:0}", page.TOKEN, page.SPEED, page.HITS,
        page.READS } },
    { kind = "lines", name = "fate_prompts_{rate}", title = "Speed of prompts by their length, {rate} MB/s",
      source = "Fate, Fig. 11", x = { "tokens", "tokens of a prompt", "prompt" }, by = "{strategy[1]}",
      y = { "tokens_per_second", "tokens a second", "1000 * prompt / ttft_ms", has_zero = true },
      records = strategies({ 128, 256, 512 }, { 25 }), caption = "A quarter of the experts at INT4 fit into memory." },
    { kind = "lines", name = "fate_tokens_{rate}", title = "Speed of tokens by memory, {rate} MB/s",
      source = "Fate, Fig. 12 to 14", x = { "memory_percent", "memory, % of the experts at INT4", "memory" },
      y = { "tokens_per_second", "tokens a second", "1000 / tpot_ms_median", has_zero = true }, by = "{strategy[1]}",
      records = strategies({ 128 }, { 12.5, 25, 50, 75 }),
      caption = "After prompts of 128 tokens. Load on demand keeps no experts." } },
}

return { name = "Fate", prefix = "Fate, ", findings = findings, entries = entries }
