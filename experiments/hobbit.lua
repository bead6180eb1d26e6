-- HOBBIT (Tang et al., arXiv:2411.01433): what the paper says, and the tables and charts of its part of the report.
-- claims.lua tells what a claim is, page.lua what an entry of the page is.
local joins = require "joins"
local page = require "page"
local tasks = require "decisions_tasks"

-- What was timed beside other systems: precisions as on the paper's two machines.
local CASES = joins.cross { "widths", { "16-4", "8-2" }, "prompt", { 16, 128 }, "rate", { 550, 50 } }

-- A prompt in half of the memory, "none", "tokens" or "blocks" deciding, on storage of a rate.
local function prompted(way, rate) return ("blocks-{widths}-times/%s:rows[cache 50 %d]"):format(way, rate) end

-- A token or a prompt with dynamic loading ("on") or without, by layers ahead.
local function dynamic(side, ahead, rate, memory)
  return ("dynamic-{widths}/%s-%s:rows[cache %d %s]"):format(side, ahead, memory or 50, rate)
end

-- Experts by score alone, whatever the cache holds: with one threshold those beyond it are skipped or low.
local SKIPPED = "kind == 'always' and second_score == first_score"
local LOW = "kind == 'always' and second_score == 1"

-- ---- claims ----

local PAIR = " (here {bits} to {low_bits} bits"

-- What skipping loses more than low precision, by rising share of the experts; nothing where there are none.
local GAPS = { { over = { { points = 0 } } },
  { over = "pair-{widths}/*", where = LOW, at = { skip = "pair-{widths}/always-{first_score}-{first_score}:" },
    let = { points = "skip.loss - loss" }, by = "low_share" } }
local SHRINKS = "to.points <= math.max(from.points, 0)"

-- With dynamic loading and without, each with preloads and without.
local TIMES = { on = dynamic("on", 1, 550), on_none = dynamic("on", 0, 550), off = dynamic("off", 1, 550),
  off_none = dynamic("off", 0, 550), slow_on = dynamic("on", 1, 50), slow_on_none = dynamic("on", 0, 50),
  slow_off = dynamic("off", 1, 50), slow_off_none = dynamic("off", 0, 50) }
local SPEEDUPS = { fast = "times(on, off)", slow = "times(slow_on, slow_off)" }

-- Times of a token by layers ahead, and the same where everything is in memory, so that each walk goes all the way.
local AHEAD, GATES = {}, {}
for ahead = 0, 4 do
  AHEAD["on_" .. ahead] = dynamic("on", ahead, 550) .. ".tpot_ms_median"
  GATES["ms_" .. ahead] = dynamic("off", ahead, 550, 100) .. ".tpot_ms_median"
end

-- The tuned eviction beside others, in both memories.
local RIVALS = { over = joins.cross { "memory", { 25, 50 }, "other", { "random", "lru", "lfu" } },
  at = { tuned = "evictions/tuned-{memory}:rows[1]", theirs = "evictions/policies-{memory}:rows[evict={other}]" },
  let = { saved = "less(tuned.stall_ms, theirs.stall_ms)" } }

-- Evictions of each sequence beside those of the model.
local WINDOWS = { over = joins.cross { "memory", { 25, 50 }, "policy", { "lfu", "lru" } },
  at = { own = "evictions/window-{policy}-{memory}:rows[1]",
    model = "evictions/policies-{memory}:rows[evict={policy}]" },
  let = { more = "own.hit_rate / model.hit_rate - 1" } }

-- HOBBIT beside other systems, in all cases that were timed of both.
local SYSTEMS = { over = joins.cross({ "mode", { "sti", "moe-offloading", "moe-infinity" } }, CASES),
  at = { theirs = "systems/others-{widths}-{prompt}:rows[{mode} 50 {rate}]",
    hobbit = "systems/hobbit-{widths}-{prompt}:rows[cache 50 {rate}]" },
  let = { speedup = "times(hobbit, theirs)", sooner = "less(hobbit.ttft_ms, theirs.ttft_ms)" } }

local findings = {
  { each = "first_pair", -- scores do not depend on bits: any pair tells
    { "Fig. 5b", "T1 = 0.6 and T2 = 0.9 divide experts into 67 % high, 30 % low and 3 % skipped",
      of = { point = "pair-{widths}/always-0.6-0.9:" },
      says = "{1 - point.low_share - point.skipped_share:0%} % high, {point.low_share:0%} % low, "
        .. "{point.skipped_share:0%} % skipped, {top_k} experts a token" } },
  { each = "pairs",
    { "Fig. 3b",
      "with fewer than 20 % of the experts in low precision perplexity rises by at most 1 %" .. PAIR .. ")",
      of = { points = { over = "pair-{widths}/*", where = LOW .. " and low_share < 0.2 and low_share > 0" } },
      let = { last = "top(points, 'low_share')" },
      says = "{last.low_share:1%} % of the experts low: loss {interval(last)} %",
      holds = "most(points, 'loss') <= 0.01" },
    { "section 2.2", "skipping 10 % of the experts raises perplexity by more than 1 %" .. PAIR .. ")",
      of = { fewer = { { over = { { skipped_share = 0, loss = 0 } } },
          { over = "pair-{widths}/*", where = SKIPPED .. " and skipped_share <= 0.1" } },
        more = { over = "pair-{widths}/*", where = SKIPPED .. " and skipped_share > 0.1" } },
      let = { left = "top(fewer, 'skipped_share')", right = "top(more, '-skipped_share')", -- a straight line between
        part = "(0.1 - left.skipped_share) / (right.skipped_share - left.skipped_share)",
        at_10 = "left.loss + part * (right.loss - left.loss)" },
      says = "{at_10:2%} %, between {left.loss:2%} % at {left.skipped_share:1%} and {right.loss:2%} % at "
        .. "{right.skipped_share:1%} % skipped",
      holds = "at_10 > 0.01" },
    { "Fig. 3b", "low precision keeps accuracy better than skipping, and the gap grows with the share" .. PAIR .. ")",
      of = { gaps = { over = GAPS, is_steps = true } },
      says = "skipping loses {gaps[1].to.points:2%} points more at {gaps[1].to.low_share:1%} % of the experts, "
        .. "{gaps[#gaps].to.points:2%} at {gaps[#gaps].to.low_share:1%} %",
      holds = "gaps[2] and count(gaps, '" .. SHRINKS .. "') == 0",
      unless = "{list(gaps, '" .. SHRINKS .. "', '{to.points:2%} points at {to.low_share:1%} %')}" },
    { "Table 3", "accuracy on GSM8K and TruthfulQA falls by no more than 1 %; here perplexity" .. PAIR .. ")",
      of = { point = "pair-{widths}/hobbit-0.6-0.9-{half}:" },
      says = "T1 = 0.6, T2 = 0.9, half of the experts cached: {interval(point)} %" } },
  { each = "pairs",
    { "Fig. 16",
      "dynamic loading makes a token 1.19 to 1.57 times faster" .. PAIR .. ", half of the experts in memory)",
      of = TIMES, let = SPEEDUPS, says = "{fast:2} times at 550 MB/s, {slow:2} times at 50 MB/s",
      holds = "math.min(fast, slow) >= 1.19",
      unless = "a token reads {on.bytes_per_token:1K} instead of {off.bytes_per_token:1K} KiB, and computing takes "
        .. "{off.compute_ms:3} of {off.tpot_ms_median:3} ms" },
    { "Fig. 16", "dynamic loading gains most where transfers are slowest", of = TIMES, let = SPEEDUPS,
      says = "INT{bits} to INT{low_bits}: {slow:2} times at 50 MB/s, {fast:2} times at 550 MB/s",
      holds = "slow > fast" },
    { "Fig. 17b",
      "with dynamic loading preloads make a token about 1.05 times faster, without at most 1.01 times" .. PAIR .. ")",
      of = TIMES,
      says = "550 MB/s: with it {times(on, on_none):2} times, without it {times(off, off_none):2} times; 50 MB/s: "
        .. "{times(slow_on, slow_on_none):2} and {times(slow_off, slow_off_none):2} times",
      holds = "on and on_none and times(off, off_none) < 1.015 and times(on, on_none) >= 1.045" },
    { "Fig. 17b", "preloads reduce the time of a prompt by about 10 %", of = TIMES,
      says = "INT{bits} to INT{low_bits}: by {less(on.ttft_ms, on_none.ttft_ms):0%} %, {on.ttft_ms:2} instead of "
        .. "{on_none.ttft_ms:2} ms",
      holds = "on.ttft_ms <= 0.905 * on_none.ttft_ms" },
    { "Fig. 17b", "the number of layers ahead is best between 1 and 3; more is slightly worse", of = AHEAD,
      let = { best = "math.min(on_1, on_2, on_3)" },
      says = "INT{bits} to INT{low_bits}: 1 to 3 layers up to {on_0 / best:3} times, 4 layers {on_0 / on_4:3} times",
      holds = "on_0 and best <= on_4" } },
  { each = "first_pair",
    { "Fig. 17a", "asking gates one by one takes time in proportion to their number, stacked it is stable",
      of = GATES,
      says = "one by one, everything in memory: a token takes {1e3 * (ms_1 - ms_0):1}, {1e3 * (ms_2 - ms_0):1}, {1e3 "
        .. "* (ms_3 - ms_0):1} and {1e3 * (ms_4 - ms_0):1} us longer with 1 to 4 layers ahead" } },
  { each = { { rival = "lru", asked = 0.0469, words = "4.69 to 8.68 % lower than LRU" },
      { rival = "lfu", asked = 0.0213, words = "2.13 to 4.19 % lower than LFU" } },
    { "Fig. 18a", "its eviction has a miss penalty {words}",
      of = { cases = { over = RIVALS, where = "other == rival" } },
      says = "waits for storage: {cases[1].saved:1%} % less with a quarter of the experts, {cases[2].saved:1%} % with "
        .. "half",
      holds = "cases[2] and least(cases, 'saved') >= asked",
      unless = "{list(cases, 'true', 'hits {tuned.hit_rate:1%} and {theirs.hit_rate:1%} %')}" } },
  { "Fig. 18a", "its eviction consistently has the lowest miss penalty, of LRU, LFU and random",
    of = { cases = RIVALS }, let = { n_less = "count(cases, 'saved > 0')" },
    says = "waits for storage are shorter than theirs in {n_less} of {#cases} cases",
    holds = "cases[6] and n_less == #cases",
    unless = "{list(cases, 'saved <= 0', '{other} in {memory} %: {theirs.stall_ms:3} and {tuned.stall_ms:3} ms')}" },
  { "Fig. 18b", "an lfu of each sequence has a hit ratio 4.5 % higher than one of the model",
    of = { lfu = { over = WINDOWS, where = "policy == 'lfu'" } },
    says = "{lfu[1].more:+1%} % with a quarter of the experts, {lfu[2].more:+1%} % with half",
    holds = "math.min(lfu[1].more, lfu[2].more) >= 0.045" },
  { "Fig. 18b", "other policies perform similarly for a sequence and for the model",
    of = { lru = { over = WINDOWS, where = "policy == 'lru'" } },
    says = "lru of each sequence: hit ratio {lru[1].more:+1%} and {lru[2].more:+1%} %" },
  { "Fig. 14", "HOBBIT delivers the best performance in both decoding speed and prefill latency",
    of = { every = SYSTEMS, all = { over = SYSTEMS, where = "mode == 'sti'" },
      offloading = { over = SYSTEMS, where = "mode == 'moe-offloading'" },
      infinity = { over = SYSTEMS, where = "mode == 'moe-infinity'" } },
    says = "tokens: faster than every expert for every token in {count(all, 'speedup > 1')}, than MoE-Offloading "
      .. "in {count(offloading, 'speedup > 1')}, than MoE-Infinity in {count(infinity, 'speedup > 1')} of {#all} "
      .. "cases; prompts: in {count(all, 'sooner > 0')}, {count(offloading, 'sooner > 0')} and {count(infinity, "
      .. "'sooner > 0')}",
    holds = "count(every, 'speedup > 1 and sooner > 0') == 3 * #all" },
  { each = { { system = "moe-offloading", faster = 3.21, earlier = 0.51, words = "MoE-Offloading an average speedup of "
        .. "3.21 to 3.29 times in decoding, prefill latency 51 to 54 % lower" },
      { system = "moe-infinity", faster = 2.30, earlier = 0.14, words = "MoE-Infinity an average speedup of 2.30 to "
        .. "9.93 times in decoding, prefill latency 14 to 72 % lower" } },
    { "Fig. 14", "against {words}", of = { cases = { over = SYSTEMS, where = "mode == system" } },
      let = { tokens = "mean(cases, 'speedup')", prompts = "mean(cases, 'sooner')" },
      says = "{tokens:2} times the decoding speed, prompts {-prompts:+0%} % of the time, mean of {#cases} cases",
      holds = "tokens >= faster and prompts >= earlier" } },
  { each = { { figure = "Fig. 14", asked = 0.14, own = "16-4 8-2", words = "prefill latency is 14 to 72 % lower, "
        .. "since dynamic loading reduces the volume of data to be read; here the bytes of a prompt" },
      { figure = "Fig. 16", asked = 0, own = "8-4 4-2", words = "dynamic loading reduces the volume of data to be "
        .. "read; here that of a prompt" } },
    { "{figure}", "{words}", -- of the precisions of the systems of Fig. 14, or of dynamic loading alone
      of = { pairs = { over = "blocks", where = "own:find(widths, 1, true)",
        at = { without = prompted("none", 550), tokens = prompted("tokens", 550), blocks = prompted("blocks", 550),
          point = "blocks-{widths}/blocks:" },
        let = { saved = "less(blocks.prompt_bytes, without.prompt_bytes)" } } },
      says = "{list(pairs, 'true', '{bits} to {low_bits} bits: {-saved:+0%} % of the bytes by blocks, at a loss of "
        .. "{point.loss:2%} %; {-less(tokens.prompt_bytes, without.prompt_bytes):+0%} % by tokens alone')}",
      holds = "pairs[1].bits > 0 and least(pairs, 'saved') >= asked" } },
  { each = { { side = "hobbit-16-4", words = "16 bits and INT4" }, { side = "hobbit-8-2", words = "INT8 and INT2" } },
    { "Table 3", "accuracy falls by no more than 1 % (point) on both tasks, {words}",
      of = { tasks = tasks.side() }, let = { points = "most(tasks, 'reference - value')" },
      says = "by at most {points:2%} points: " .. tasks.SCORES, holds = "tasks[1].value and points <= 0.01" } },
}

-- ---- the page ----

-- What points decide: thresholds beyond which experts are low (T2 = 1) or skipped, and more. Losses beyond 2.5 % are
-- left out where everything else loses less than a percent.
local function bytes_chart(size)
  local function decided(words, where)
    return { over = "pair-{widths}/*", with = { words = words },
      where = "slots == " .. size .. " and loss <= 0.025 and kind ~= 'always' and " .. where }
  end
  return { kind = "points", name = "bytes_{bits}_{low_bits}_{" .. size .. "}",
    source = "HOBBIT, section 3.2; Fate, its low-end machine",
    title = "Loss by bytes: INT{bits} with low copies of INT{low_bits}, {" .. size .. "} of {n_expert} experts cached",
    x = { "kib_per_token", "KiB of experts read a token", "missed_bytes_per_token / 1024" },
    y = { "loss_percent", "loss of perplexity against the same bundle, %", "100 * loss", has_zero = true },
    has_interval = true, by = "{words}",
    records = {
      decided("cache-prior", "kind == 'none' and method ~= 'top-k'"),
      decided("hobbit, T2 = 1", "kind == 'hobbit' and method == 'top-k' and second_score == 1"),
      decided("hobbit, T2 = T1", "kind == 'hobbit' and method == 'top-k' and second_score == first_score"),
      decided("fate", "kind == 'fate' and method == 'top-k'"),
      decided("cache-prior with hobbit", "kind ~= 'none' and method ~= 'top-k'"),
      { over = { { words = "no decisions", loss = 0 } }, at = { none = "pair-{widths}/none-{" .. size .. "}:" },
        let = { missed_bytes_per_token = "none.missed_bytes_per_token" } } },
    of = { equal = "pair-{widths}/equal-{" .. size .. "}:" },
    uprights = { { "equal.missed_bytes_per_token / 1024", "no decisions, equal memory" } },
    caption = "Low copies have slots of their own; 'equal memory' gives theirs to the experts: {equal.slots} slots. "
      .. "Losses above 2.5 % are in the table alone." }
end

local DYNAMIC = { at = { row = dynamic("{side}", "{ahead}", "{rate}"), none = dynamic("off", 0, "{rate}") },
  over = joins.cross { "rate", { 550, 50 }, "side", { "off", "on" }, "ahead", { 0, 1, 2, 3, 4 } } }

-- All policies in a memory: those of one simulation, then those of other files, by their names.
local function evicted(memory)
  local policies = "evictions/policies-" .. memory
  local random = policies .. ":rows[evict=random]"
  return { { over = policies .. ":rows", with = { memory = memory }, let = { words = "evict" },
      may = { random = random, bound = policies .. ":bounds[1].hit_rate_bound" } },
    { over = joins.cross { "memory", { memory }, "evict", { "tuned", "window-lfu", "window-lru" } },
      at = { row = "evictions/{evict}-{memory}:rows[1]",
        bound = "evictions/{evict}-{memory}:bounds[1].hit_rate_bound" },
      may = { random = random, weights = "tuned-evict-{memory}:tuned_evict[1].evict_weights" },
      let = { words = "evict == 'tuned' and weights == weights and 'tuned, ' .. weights or evict" } } }
end

local EVICTED = { evicted(25), evicted(50) }

local entries = {
  { each = "pairs",
    { "Precision at a miss: INT{bits} with low copies of INT{low_bits}", name = "pair_{bits}_{low_bits}",
      records = "pair-{widths}/*",
      columns = { "decisions: {setting ~= '' and setting or file:find('equal') and 'none, in equal memory' or 'none'}",
        "slots: {slots}", "low slots: {low_slots}", "low, %: {low_share:1%}", "skipped, %: {skipped_share:1%}",
        page.MISSES, "KiB a token: {missed_bytes_per_token:1K}", page.LOSS, page.INTERVAL } },
    bytes_chart "half", bytes_chart "quarter",
    { kind = "points", name = "replaced_{bits}_{low_bits}", source = "HOBBIT, Fig. 3(b)", by = "{words}",
      title = "Loss by the share of experts in INT{low_bits} instead of INT{bits}, or skipped", has_interval = true,
      x = { "share_percent", "experts that are replaced, % of those chosen", "100 * n / n_chosen" },
      y = { "loss_percent", "loss of perplexity, %", "100 * loss", has_zero = true },
      records = { over = { { over = "pair-{widths}/*", where = LOW, with = { words = "in low precision" },
            let = { n = "n_low" } },
          { over = "pair-{widths}/*", where = SKIPPED, with = { words = "skipped" }, let = { n = "n_skipped" } } },
        where = "loss <= 0.1" },
      caption = "The least important experts of each token by HOBBIT's score (eq. 2), whatever the cache holds. Losses "
        .. "above 10 % are in the table alone." } },
  { "HOBBIT, Fig. 5b: scores of the experts that tokens take", charts = "scores", records = "profile.h5:" },
  { each = "pairs",
    { "HOBBIT, Fig. 5b: experts by score, INT{bits} and INT{low_bits}", name = "shares_{bits}_{low_bits}",
      records = { over = "pair-{widths}/*", where = "kind == 'always'" },
      columns = { "T1: {first_score:2}", "T2: {second_score:2}", "high, %: {1 - low_share - skipped_share:1%}",
        "low, %: {low_share:1%}", "skipped, %: {skipped_share:1%}", page.LOSS, page.INTERVAL },
      given = { { "0.60, the paper's Mixtral-8x7B", "0.90", "67", "30", "3", "–", "–" } } },
    { "HOBBIT, Fig. 16 and 17: dynamic loading (T1 = 0.6, T2 = 0.9) and preloading, INT{bits} and INT{low_bits}",
      name = "dynamic_{bits}_{low_bits}", records = DYNAMIC,
      columns = { "storage, MB/s: {rate}", "dynamic loading: {side}", "layers ahead: {ahead}", page.PROMPT, page.TOKEN,
        "times the speed without either: {none.tpot_ms_median / tpot_ms_median:2}", page.HITS, page.READS,
        page.WAITS } },
    { kind = "lines", name = "layers_ahead_{bits}_{low_bits}", source = "HOBBIT, Fig. 16 and 17", records = DYNAMIC,
      title = "Time of a token by layers ahead: INT{bits} with low copies of INT{low_bits}",
      x = { "layers_ahead", "layers ahead that are predicted", "ahead", is_whole = true },
      y = { "ms", "time of a token, ms", "tpot_ms_median", has_zero = true },
      by = "{side == 'on' and 'with' or 'without'} dynamic loading, {rate} MB/s",
      caption = "Half of the experts in memory; with dynamic loading a fifth of it is for low copies." } },
  { "HOBBIT, Fig. 18: evictions",
    "hobbit weighs how recently and how often an expert was used, how often in high precision, and how far its layer "
      .. "is; tuned has the weights of these four that were found on calibration. window-lfu and window-lru forget at "
      .. "the end of each window of the text; lfu and lru do not.",
    name = "evictions", records = EVICTED,
    columns = { "memory, % of the experts: {memory}", "policy: {words}", page.HITS, "Belady's, %: {bound:1%}",
      page.READS, page.WAITS, "of random's, %: {stall_ms / random.stall_ms:1%}" } },
  { kind = "bars", name = "evictions_by_policy", title = "Waits for storage by eviction",
    source = "HOBBIT, Fig. 18(a)",
    x = { "policy", "", "evict" }, by = "{memory == 25 and 'a quarter of the experts' or 'half of the experts'}",
    y = { "percent_of_random", "waits of a token, % of those with random eviction",
      "100 * stall_ms / random.stall_ms" },
    records = { over = EVICTED, where = "not evict:find('window')" },
    caption = "Simulated from the routing of the test text at 550 MB/s; 'tuned' has the weights that wait least on the "
      .. "calibration text. Experts have one precision." },
  { "HOBBIT, Fig. 14: beside the systems that it compares with",
    "Half of the experts fit into memory. The others keep and preload as those systems do, with this project's reads "
      .. "and arithmetic; HOBBIT alone has low copies, in a fifth of the memory, by the paper's thresholds 0.6 and "
      .. "0.9, a prompt by blocks. The table below says what this loses.",
    name = "systems",
    records = { at = { row = "systems/{system[2]}-{widths}-{prompt}:rows[{system[3]} 50 {rate}]" },
      over = joins.cross({ "system", { { "every expert for every token", "others", "sti" },
        { "MoE-Offloading", "others", "moe-offloading" }, { "MoE-Infinity", "others", "moe-infinity" },
        { "HOBBIT", "hobbit", "cache" } } }, CASES) },
    columns = { "precisions: {widths == '16-4' and '16 bits and INT4' or 'INT8 and INT2'}", "storage, MB/s: {rate}",
      "prompt, tokens: {prompt}", "system: {system[1]}", page.PROMPT, page.TOKEN, page.SPEED, page.HITS, page.READS } },
  { "HOBBIT, Fig. 14 and 16: what a prompt reads",
    "Half of the experts fit into memory, a fifth of it for low copies; LRU, no preloads. Tokens of a prompt that "
      .. "decide each for themselves let a chunk read one expert in both copies. In a block, the first token that "
      .. "takes an expert decides for the others. The loss is that of the prompts' own tokens, against the same "
      .. "bundle without decisions.",
    name = "blocks",
    records = { may = { point = "blocks-{widths}/{way}:" },
      over = function(sample) return joins.cross({ "way", { "none", "tokens", "blocks" } }, sample.blocks) end,
      at = { fast = prompted("{way}", 550), slow = prompted("{way}", 50), none = prompted("none", 550) },
      let = { words = "({ none = 'none', tokens = 'hobbit:0.6:0.9, each token by itself', "
        .. "blocks = 'hobbit:0.6:0.9, by blocks of 128' })[way]" } },
    columns = { "bits: {bits} and {low_bits}", "decisions: {words}", "KiB of a prompt: {fast.prompt_bytes:1K}",
      "more than without, %: {way == 'none' and 0 or -less(fast.prompt_bytes, none.prompt_bytes):1%}",
      "ms at 550 MB/s: {fast.ttft_ms:2}", "ms at 50 MB/s: {slow.ttft_ms:2}",
      "loss, %: {way == 'none' and 0 or ('%.2f'):format(100 * point.loss)}",
      "90 % interval: {way == 'none' and '-' or range(point)}" } },
}

return { name = "HOBBIT", prefix = "HOBBIT, ", findings = findings, entries = entries }
