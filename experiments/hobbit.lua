-- HOBBIT (Tang et al., arXiv:2411.01433): what the paper says. claims.lua tells what a claim is.
local measures = require "hobbit_measures"
local tasks = require "decisions_tasks"

local PAIR = " (here {bits} to {low_bits} bits"

-- ---- experts by score alone, whatever the cache holds ----

-- One threshold, the experts beyond it in low precision.
local REPLACED = "kind == 'always' and second_score == 1"

-- The loss where 10 % are skipped, on a straight line between the two points beside it.
local function skipped(_, pair)
  local left, right = { skipped_share = 0, loss = 0 }, nil
  for _, point in ipairs(pair.points) do
    local is_its, share = point.kind == "always" and point.second_score == point.first_score, point.skipped_share
    if is_its and share <= 0.1 and share > left.skipped_share then left = point end
    if is_its and share > 0.1 and (not right or share < right.skipped_share) then right = point end
  end
  local part = right and (0.1 - left.skipped_share) / (right.skipped_share - left.skipped_share)
  return right and { left = left, right = right, loss = left.loss + part * (right.loss - left.loss) }
end

-- What skipping loses more than low precision, by rising share of the experts, with what it was before.
local function gaps(_, pair)
  local list = {}
  for _, low in ipairs(pair.points) do
    for _, skip in ipairs(pair.points) do
      local is_low, is_skip = low.second_score == 1, skip.second_score == skip.first_score
      local is_one = low.kind == "always" and skip.kind == "always" and low.first_score == skip.first_score
      if is_one and is_low and is_skip then
        table.insert(list, { share = low.low_share, points = skip.loss - low.loss, before = 0 })
      end
    end
  end
  table.sort(list, function(a, b) return a.share < b.share end)
  for i = 2, #list do list[i].before = list[i - 1].points end
  return #list > 1 and list or nil
end

-- ---- times ----

-- A token or a prompt with dynamic loading ("on") or without, by layers ahead.
local function dynamic(side, ahead, rate, memory)
  return ("dynamic-{widths}/%s-%d:rows[cache %d %d]"):format(side, ahead, memory or 50, rate)
end

local FAST, SLOW = "off.tpot_ms_median / on.tpot_ms_median", "slow_off.tpot_ms_median / slow_on.tpot_ms_median"

local TIMES = { -- with dynamic loading and without, each with preloads and without
  on = dynamic("on", 1, 550), on_none = dynamic("on", 0, 550), off = dynamic("off", 1, 550),
  off_none = dynamic("off", 0, 550),
  slow_on = dynamic("on", 1, 50), slow_on_none = dynamic("on", 0, 50), slow_off = dynamic("off", 1, 50),
  slow_off_none = dynamic("off", 0, 50),
}

local AHEAD = {} -- by layers ahead
for ahead = 0, 4 do AHEAD["on_" .. ahead] = dynamic("on", ahead, 550) .. ".tpot_ms_median" end

local GATES = {} -- where everything is in memory, so that each walk goes all the way
for ahead = 0, 4 do GATES["ms_" .. ahead] = dynamic("off", ahead, 550, 100) .. ".tpot_ms_median" end

-- ---- evictions and systems ----

local LESS = "1 - tuned.stall_ms / theirs.stall_ms"

local function penalty(other, least, paper)
  return { "Fig. 18a", paper, of = { cases = measures.against(other) },
    says = "waits for storage: {1 - cases[1].tuned.stall_ms / cases[1].theirs.stall_ms:1%} % less with a quarter of "
      .. "the experts, {1 - cases[2].tuned.stall_ms / cases[2].theirs.stall_ms:1%} % with half",
    holds = "cases[2] and least(cases, '" .. LESS .. "') >= " .. least,
    unless = "{list(cases, 'true', 'hits {tuned.hit_rate:1%} and {theirs.hit_rate:1%} %')}" }
end

local LOWER = "tuned.stall_ms < theirs.stall_ms"

local function windows(policy)
  return { over = measures.MEMORIES,
    at = { own = "evictions/window-" .. policy .. "-{memory}:rows[1]",
      model = "evictions/policies-{memory}:rows[evict=" .. policy .. "]" },
    let = { more = "own.hit_rate / model.hit_rate - 1" } }
end

-- HOBBIT beside another system, in all cases that were timed of both.
local function cases(mode)
  return { over = measures.CASES,
    at = { theirs = "systems/others-{widths}-{prompt}:rows[" .. mode .. " 50 {rate}]",
      hobbit = "systems/hobbit-{widths}-{prompt}:rows[cache 50 {rate}]" } }
end

local FASTER = "hobbit.tpot_ms_median < theirs.tpot_ms_median"
local SOONER = "hobbit.ttft_ms < theirs.ttft_ms"

local function system(mode, speedup, reduction, paper)
  return { "Fig. 14", paper, of = { cases = cases(mode) },
    says = "{mean(cases, 'theirs.tpot_ms_median / hobbit.tpot_ms_median'):2} times the decoding speed, prompts "
      .. "{-mean(cases, '1 - hobbit.ttft_ms / theirs.ttft_ms'):+0%} % of the time, mean of {#cases} cases",
    holds = "mean(cases, 'theirs.tpot_ms_median / hobbit.tpot_ms_median') >= " .. speedup .. " and mean(cases, '1 - "
      .. "hobbit.ttft_ms / theirs.ttft_ms') >= " .. reduction }
end

-- What prompts read by blocks, of the precisions of the systems of Fig. 14 or of dynamic loading alone.
local function blocks(figure, where, least, paper)
  return { figure, paper,
    of = { pairs = { over = "blocks", where = where,
        at = { without = measures.WAY:format("none", 550), tokens = measures.WAY:format("tokens", 550),
          blocks = measures.WAY:format("blocks", 550), point = "blocks-{widths}/blocks:" } } },
    says = "{list(pairs, 'true', '{bits} to {low_bits} bits: {-(1 - blocks.prompt_bytes / without.prompt_bytes):+0%} "
      .. "% of the bytes by blocks, at a loss of {point.loss:2%} %; {-(1 - tokens.prompt_bytes / "
      .. "without.prompt_bytes):+0%} % by tokens alone')}",
    holds = "pairs[1].bits > 0 and least(pairs, '1 - blocks.prompt_bytes / without.prompt_bytes') >= " .. least }
end

local function accuracy(side, precisions)
  return { "Table 3", "accuracy falls by no more than 1 % (point) on both tasks, " .. precisions,
    of = { tasks = tasks.side(side) },
    says = "by at most {most(tasks, 'reference - value'):2%} points: " .. tasks.SCORES,
    holds = "tasks[1].value and most(tasks, 'reference - value') <= 0.01" }
end

return {
  {
    each = "first_pair", -- scores do not depend on bits: any pair tells
    { "Fig. 5b", "T1 = 0.6 and T2 = 0.9 divide experts into 67 % high, 30 % low and 3 % skipped",
      of = { point = "pair-{widths}/always-0.6-0.9:" },
      says = "{1 - point.low_share - point.skipped_share:0%} % high, {point.low_share:0%} % low, "
        .. "{point.skipped_share:0%} % skipped, {top_k} experts a token" } },
  { each = "pairs",
    { "Fig. 3b",
      "with fewer than 20 % of the experts in low precision perplexity rises by at most 1 %" .. PAIR .. ")",
      of = { points = { over = "pair-{widths}/*", where = REPLACED .. " and low_share < 0.2 and low_share > 0" } },
      says = "{top(points, 'low_share').low_share:1%} % of the experts low: loss {interval(top(points, 'low_share'))} "
        .. "%",
      holds = "most(points, 'loss') <= 0.01" },
    { "section 2.2", "skipping 10 % of the experts raises perplexity by more than 1 %" .. PAIR .. ")",
      of = { at_10 = skipped },
      says = "{at_10.loss:2%} %, between {at_10.left.loss:2%} % at {at_10.left.skipped_share:1%} and "
        .. "{at_10.right.loss:2%} % at {at_10.right.skipped_share:1%} % skipped",
      holds = "at_10.loss > 0.01" },
    { "Fig. 3b", "low precision keeps accuracy better than skipping, and the gap grows with the share" .. PAIR .. ")",
      of = { gaps = gaps },
      says = "skipping loses {gaps[1].points:2%} points more at {gaps[1].share:1%} % of the experts, "
        .. "{gaps[#gaps].points:2%} at {gaps[#gaps].share:1%} %",
      holds = "count(gaps, 'points > math.max(before, 0)') == #gaps",
      unless = "{list(gaps, 'points <= math.max(before, 0)', '{points:2%} points at {share:1%} %')}" },
    { "Table 3", "accuracy on GSM8K and TruthfulQA falls by no more than 1 %; here perplexity" .. PAIR .. ")",
      of = { point = "pair-{widths}/hobbit-0.6-0.9-{half}:" },
      says = "T1 = 0.6, T2 = 0.9, half of the experts cached: {interval(point)} %" } },
  { each = "pairs",
    { "Fig. 16",
      "dynamic loading makes a token 1.19 to 1.57 times faster" .. PAIR .. ", half of the experts in memory)",
      of = TIMES, says = "{" .. FAST .. ":2} times at 550 MB/s, {" .. SLOW .. ":2} times at 50 MB/s",
      holds = "math.min(" .. FAST .. ", " .. SLOW .. ") >= 1.19",
      unless = "a token reads {on.bytes_per_token / 1024:1} instead of {off.bytes_per_token / 1024:1} KiB, and "
        .. "computing takes {off.compute_ms:3} of {off.tpot_ms_median:3} ms" },
    { "Fig. 16", "dynamic loading gains most where transfers are slowest", of = TIMES,
      says = "INT{bits} to INT{low_bits}: {" .. SLOW .. ":2} times at 50 MB/s, {" .. FAST .. ":2} times at 550 MB/s",
      holds = SLOW .. " > " .. FAST },
    { "Fig. 17b",
      "with dynamic loading preloads make a token about 1.05 times faster, without at most 1.01 times" .. PAIR .. ")",
      of = TIMES,
      says = "550 MB/s: with it {on_none.tpot_ms_median / on.tpot_ms_median:2} times, without it "
        .. "{off_none.tpot_ms_median / off.tpot_ms_median:2} times; 50 MB/s: {slow_on_none.tpot_ms_median / "
        .. "slow_on.tpot_ms_median:2} and {slow_off_none.tpot_ms_median / slow_off.tpot_ms_median:2} times",
      holds = "on and on_none and off_none.tpot_ms_median / off.tpot_ms_median < 1.015 and on_none.tpot_ms_median / "
        .. "on.tpot_ms_median >= 1.045" },
    { "Fig. 17b", "preloads reduce the time of a prompt by about 10 %", of = TIMES,
      says = "INT{bits} to INT{low_bits}: by {1 - on.ttft_ms / on_none.ttft_ms:0%} %, {on.ttft_ms:2} instead of "
        .. "{on_none.ttft_ms:2} ms",
      holds = "on.ttft_ms <= 0.905 * on_none.ttft_ms" },
    { "Fig. 17b", "the number of layers ahead is best between 1 and 3; more is slightly worse", of = AHEAD,
      says = "INT{bits} to INT{low_bits}: 1 to 3 layers up to {on_0 / math.min(on_1, on_2, on_3):3} times, 4 layers "
        .. "{on_0 / on_4:3} times",
      holds = "on_0 and math.min(on_1, on_2, on_3) <= on_4" } },
  { each = "first_pair",
    { "Fig. 17a", "asking gates one by one takes time in proportion to their number, stacked it is stable",
      of = GATES,
      says = "one by one, everything in memory: a token takes {1e3 * (ms_1 - ms_0):1}, {1e3 * (ms_2 - ms_0):1}, {1e3 "
        .. "* (ms_3 - ms_0):1} and {1e3 * (ms_4 - ms_0):1} us longer with 1 to 4 layers ahead" } },
  penalty("lru", 0.0469, "its eviction has a miss penalty 4.69 to 8.68 % lower than LRU"),
  penalty("lfu", 0.0213, "its eviction has a miss penalty 2.13 to 4.19 % lower than LFU"),
  { "Fig. 18a", "its eviction consistently has the lowest miss penalty, of LRU, LFU and random",
    of = { cases = measures.against() },
    says = "waits for storage are shorter than theirs in {count(cases, '" .. LOWER .. "')} of {#cases} cases",
    holds = "cases[6] and count(cases, '" .. LOWER .. "') == #cases",
    unless = "{list(cases, 'not (" .. LOWER .. ")', '{other} in {memory} %: {theirs.stall_ms:3} and "
      .. "{tuned.stall_ms:3} ms')}" },
  { "Fig. 18b", "an lfu of each sequence has a hit ratio 4.5 % higher than one of the model",
    of = { lfu = windows "lfu" },
    says = "{lfu[1].more:+1%} % with a quarter of the experts, {lfu[2].more:+1%} % with half",
    holds = "math.min(lfu[1].more, lfu[2].more) >= 0.045" },
  { "Fig. 18b", "other policies perform similarly for a sequence and for the model", of = { lru = windows "lru" },
    says = "lru of each sequence: hit ratio {lru[1].more:+1%} and {lru[2].more:+1%} %" },
  { "Fig. 14", "HOBBIT delivers the best performance in both decoding speed and prefill latency",
    of = { all = cases "sti", offloading = cases "moe-offloading", infinity = cases "moe-infinity" },
    says = "tokens: faster than every expert for every token in {count(all, '" .. FASTER .. "')}, than MoE-Offloading "
      .. "in {count(offloading, '" .. FASTER .. "')}, than MoE-Infinity in {count(infinity, '" .. FASTER
      .. "')} of {#all} cases; prompts: in {count(all, '" .. SOONER .. "')}, {count(offloading, '" .. SOONER
      .. "')} and {count(infinity, '" .. SOONER .. "')}",
    holds = "count(all, '" .. FASTER .. " and " .. SOONER .. "') + count(offloading, '" .. FASTER .. " and " .. SOONER
      .. "') + count(infinity, '" .. FASTER .. " and " .. SOONER .. "') == 3 * #all" },
  system("moe-offloading", 3.21, 0.51, "against MoE-Offloading an average speedup of 3.21 to 3.29 times in decoding, "
    .. "prefill latency 51 to 54 % lower"),
  system("moe-infinity", 2.30, 0.14, "against MoE-Infinity an average speedup of 2.30 to 9.93 times in decoding, "
    .. "prefill latency 14 to 72 % lower"),
  blocks("Fig. 14", "widths == '16-4' or widths == '8-2'", 0.14, "prefill latency is 14 to 72 % lower, since dynamic "
    .. "loading reduces the volume of data to be read; here the bytes of a prompt"),
  blocks("Fig. 16", "widths ~= '16-4' and widths ~= '8-2'", 0,
    "dynamic loading reduces the volume of data to be read; here that of a prompt"),
  accuracy("hobbit-16-4", "16 bits and INT4"), accuracy("hobbit-8-2", "INT8 and INT2"),
}
