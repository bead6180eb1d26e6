-- The part of the report about HOBBIT: tables and charts.
local joins = require "joins"
local measures = require "hobbit_measures"
local page = require "page"

local LOSSES = { "loss_percent", "loss of perplexity, %", "100 * loss", has_zero = true }

-- ---- precision at a miss ----

-- What points decide: thresholds beyond which experts are low (T2 = 1) or skipped, and more.
local KINDS = {
  { "cache-prior", "kind == 'none' and method ~= 'top-k'" },
  { "hobbit, T2 = 1", "kind == 'hobbit' and method == 'top-k' and second_score == 1" },
  { "hobbit, T2 = T1", "kind == 'hobbit' and method == 'top-k' and second_score == first_score" },
  { "fate", "kind == 'fate' and method == 'top-k'" },
  { "cache-prior with hobbit", "kind ~= 'none' and method ~= 'top-k'" },
}

-- Losses beyond 2.5 % are left out where everything else loses less than a percent.
local function bytes_chart(size)
  local records = {}
  for k, kind in ipairs(KINDS) do
    records[k] = { over = "pair-{widths}/*", with = { words = kind[1] },
      where = "slots == " .. size .. " and loss <= 0.025 and kind ~= 'always' and (" .. kind[2] .. ")" }
  end
  table.insert(records, { over = { { words = "no decisions", loss = 0 } },
    at = { none = "pair-{widths}/none-{" .. size .. "}:" },
    let = { missed_bytes_per_token = "none.missed_bytes_per_token" } })
  return { kind = "points", name = "bytes_{bits}_{low_bits}_{" .. size .. "}",
    source = "HOBBIT, section 3.2; Fate, its low-end machine",
    title = "Loss by bytes: INT{bits} with low copies of INT{low_bits}, {" .. size .. "} of {n_expert} experts cached",
    x = { "kib_per_token", "KiB of experts read a token", "missed_bytes_per_token / 1024" },
    y = { "loss_percent", "loss of perplexity against the same bundle, %", "100 * loss", has_zero = true },
    by = "{words}", low = "100 * loss_low", high = "100 * loss_high", records = records,
    of = { equal = "pair-{widths}/equal-{" .. size .. "}:" },
    uprights = { { "equal.missed_bytes_per_token / 1024", "no decisions, equal memory" } },
    caption = "Low copies have slots of their own; 'equal memory' gives theirs to the experts: {equal.slots} slots. "
      .. "Losses above 2.5 % are in the table alone." }
end

local function replaced(words, second, number)
  return { over = "pair-{widths}/*", where = "kind == 'always' and second_score == " .. second .. " and loss <= 0.1",
    with = { words = words }, let = { n = number } }
end

local misses = {
  each = "pairs",
  { "Precision at a miss: INT{bits} with low copies of INT{low_bits}", name = "pair_{bits}_{low_bits}",
    records = "pair-{widths}/*",
    columns = { { "decisions",
        "{setting ~= '' and setting or file:find('equal') and 'none, in equal memory' or 'none'}" },
      { "slots", "{slots}" }, { "low slots", "{low_slots}" }, { "low, %", "{low_share:1%}" },
      { "skipped, %", "{skipped_share:1%}" }, { "misses, %", "{miss_rate:1%}" },
      { "KiB a token", "{missed_bytes_per_token / 1024:1}" }, page.LOSS, page.INTERVAL } },
  bytes_chart "half", bytes_chart "quarter",
  { kind = "points", name = "replaced_{bits}_{low_bits}", source = "HOBBIT, Fig. 3(b)", by = "{words}",
    title = "Loss by the share of experts in INT{low_bits} instead of INT{bits}, or skipped",
    x = { "share_percent", "experts that are replaced, % of those chosen", "100 * n / n_chosen" }, y = LOSSES,
    low = "100 * loss_low", high = "100 * loss_high",
    records = { replaced("in low precision", "1", "n_low"), replaced("skipped", "first_score", "n_skipped") },
    caption = "The least important experts of each token by HOBBIT's score (eq. 2), whatever the cache holds. Losses "
      .. "above 10 % are in the table alone." },
}

-- ---- scores, dynamic loading and preloads ----

local DYNAMIC = {
  over = joins.cross { "rate", { 550, 50 }, "side", { "off", "on" }, "ahead", { 0, 1, 2, 3, 4 } },
  at = { row = "dynamic-{widths}/{side}-{ahead}:rows[cache 50 {rate}]",
    none = "dynamic-{widths}/off-0:rows[cache 50 {rate}]" },
}

local dynamic = {
  each = "pairs",
  { "HOBBIT, Fig. 5b: experts by score, INT{bits} and INT{low_bits}", name = "shares_{bits}_{low_bits}",
    records = { over = "pair-{widths}/*", where = "kind == 'always'" },
    columns = { { "T1", "{first_score:2}" }, { "T2", "{second_score:2}" },
      { "high, %", "{1 - low_share - skipped_share:1%}" }, { "low, %", "{low_share:1%}" },
      { "skipped, %", "{skipped_share:1%}" }, page.LOSS, page.INTERVAL },
    given = { { "0.60, the paper's Mixtral-8x7B", "0.90", "67", "30", "3", "–", "–" } } },
  { "HOBBIT, Fig. 16 and 17: dynamic loading (T1 = 0.6, T2 = 0.9) and preloading, INT{bits} and INT{low_bits}",
    name = "dynamic_{bits}_{low_bits}", records = DYNAMIC,
    columns = { { "storage, MB/s", "{rate}" }, { "dynamic loading", "{side}" }, { "layers ahead", "{ahead}" },
      page.PROMPT, page.TOKEN, { "times the speed without either", "{none.tpot_ms_median / tpot_ms_median:2}" },
      page.HITS, page.READS, { "waits, ms a token", "{stall_ms:3}" } } },
  { kind = "lines", name = "layers_ahead_{bits}_{low_bits}", source = "HOBBIT, Fig. 16 and 17", records = DYNAMIC,
    title = "Time of a token by layers ahead: INT{bits} with low copies of INT{low_bits}",
    x = { "layers_ahead", "layers ahead that are predicted", "ahead", is_whole = true },
    y = { "ms", "time of a token, ms", "tpot_ms_median", has_zero = true },
    by = "{side == 'on' and 'with' or 'without'} dynamic loading, {rate} MB/s",
    caption = "Half of the experts in memory; with dynamic loading a fifth of it is for low copies." },
}

-- ---- evictions ----

-- All policies in a memory: those of one simulation, then those of other files, by their names.
local function evicted(memory)
  local random = "evictions/policies-" .. memory .. ":rows[evict=random]"
  local function one(policy, words)
    local file = "evictions/" .. policy .. "-" .. memory
    return { over = { { memory = memory } },
      at = { row = file .. ":rows[1]", bound = file .. ":bounds[1].hit_rate_bound" },
      may = { random = random, weights = "tuned-evict-" .. memory .. ":tuned_evict[1].evict_weights" },
      with = { evict = policy }, let = { words = words } }
  end
  return { { over = "evictions/policies-" .. memory .. ":rows",
      may = { random = random, bound = "evictions/policies-" .. memory .. ":bounds[1].hit_rate_bound" },
      with = { memory = memory }, let = { words = "evict" } },
    one("tuned", "weights == weights and 'tuned, ' .. weights or evict"), one("window-lfu", "evict"),
    one("window-lru", "evict") }
end

local EVICTED = { evicted(25), evicted(50) }

-- ---- systems and blocks ----

local SYSTEMS = {}
for _, case in ipairs(measures.CASES) do
  for _, system in ipairs { { "every expert for every token", "others", "sti" },
    { "MoE-Offloading", "others", "moe-offloading" }, { "MoE-Infinity", "others", "moe-infinity" },
    { "HOBBIT", "hobbit", "cache" } } do
    table.insert(SYSTEMS, setmetatable({ system = system[1], file = system[2], mode = system[3] }, { __index = case }))
  end
end

-- How prompts of a pair were read, and what they lose by it.
local function ways(sample)
  local all = {}
  for _, pair in ipairs(sample.blocks) do
    local one = joins.value({ over = { { way = "none", words = "none" },
        { way = "tokens", words = "hobbit:0.6:0.9, each token by itself" },
        { way = "blocks", words = "hobbit:0.6:0.9, by blocks of 128" } },
      at = { fast = measures.WAY:format("{way}", 550), slow = measures.WAY:format("{way}", 50),
        none = measures.WAY:format("none", 550) },
      may = { point = "blocks-{widths}/{way}:" }, with = { pair = pair } }, sample, pair)
    table.move(one, 1, #one, #all + 1, all)
  end
  return all
end

return {
  misses, { "HOBBIT, Fig. 5b: scores of the experts that tokens take", charts = { "scores" },
    records = "profile.h5:" }, dynamic,
  { "HOBBIT, Fig. 18: eviction policies",
    "hobbit weighs how recently and how often an expert was used, how often in high precision, and how far its layer "
      .. "is; tuned has the weights of these four that were found on calibration. window-lfu and window-lru forget at "
      .. "the end of each window of the text; lfu and lru do not.",
    name = "evictions", records = EVICTED,
    columns = { { "memory, % of the experts", "{memory}" }, { "policy", "{words}" }, page.HITS,
      { "Belady's, %", "{bound:1%}" }, page.READS, { "waits, ms a token", "{stall_ms:3}" },
      { "of random's, %", "{stall_ms / random.stall_ms:1%}" } } },
  { kind = "bars", name = "evictions_by_policy", title = "Waits for storage by eviction policy", source = "HOBBIT, "
    .. "Fig. 18(a)",
    x = { "policy", "", "evict" }, by = "{memory == 25 and 'a quarter of the experts' or 'half of the experts'}",
    y = { "percent_of_random", "waits of a token, % of those with random eviction",
      "100 * stall_ms / random.stall_ms" },
    records = { { over = function(sample) return joins.value(EVICTED, sample, {}) end, where = "not "
      .. "evict:find('window')" } },
    caption = "Simulated from the routing of the test text at 550 MB/s; 'tuned' has the weights that wait least on the "
      .. "calibration text. Experts have one precision." },
  { "HOBBIT, Fig. 14: beside the systems that it compares with",
    "Half of the experts fit into memory. The others keep and preload as those systems do, with this project's reads "
      .. "and arithmetic; HOBBIT alone has low copies, in a fifth of the memory, by the paper's thresholds 0.6 and "
      .. "0.9, a prompt by blocks. The table below says what this loses.",
    name = "systems",
    records = { over = SYSTEMS, at = { row = "systems/{file}-{widths}-{prompt}:rows[{mode} 50 {rate}]" } },
    columns = { { "precisions", "{widths == '16-4' and '16 bits and INT4' or 'INT8 and INT2'}" },
      { "storage, MB/s", "{rate}" }, { "prompt, tokens", "{prompt}" }, { "system", "{system}" }, page.PROMPT,
      page.TOKEN, page.SPEED, page.HITS, page.READS } },
  { "HOBBIT, Fig. 14 and 16: what a prompt reads",
    "Half of the experts fit into memory, a fifth of it for low copies; LRU, no preloads. Tokens of a prompt that "
      .. "decide each for themselves let a chunk read one expert in both copies. In a block, the first token that "
      .. "takes an expert decides for the others. The loss is that of the prompts' own tokens, against the same "
      .. "bundle without decisions.",
    name = "blocks", records = ways,
    columns = { { "bits", "{pair.bits} and {pair.low_bits}" }, { "decisions", "{words}" },
      { "KiB of a prompt", "{fast.prompt_bytes / 1024:1}" },
      { "more than without, %", "{way == 'none' and 0 or -(1 - fast.prompt_bytes / none.prompt_bytes):1%}" },
      { "ms at 550 MB/s", "{fast.ttft_ms:2}" }, { "ms at 50 MB/s", "{slow.ttft_ms:2}" },
      { "loss, %", "{way == 'none' and 0 or ('%.2f'):format(100 * point.loss)}" },
      { "90 % interval",
        "{way == 'none' and '-' or ('%.2f to %.2f'):format(100 * point.loss_low, 100 * point.loss_high)}" } } },
}
