-- The part of the report about Fate: tables and charts.
local joins = require "joins"
local measures = require "fate_measures"
local page = require "page"

-- ---- popular experts ----

local function popular_shares(sample)
  local layers = measures.popular(0.1)(sample)
  for p, part in ipairs { 0.1, 0.3, 0.5 } do
    for l, layer in ipairs(measures.popular(part)(sample)) do
      layers[l].shares = layers[l].shares or {}
      layers[l].shares[p] = layer.share
    end
  end
  return layers
end

-- ---- low copies of unpopular experts ----

local TIMED = "prefill-{widths}-times/{file}:rows[cache 25 %d]"

local LOW_COPIES = {
  over = function(_, pair)
    local without = { file = "none", setting = "no low copies", taken_low_share = 0, loss = 0 }
    return { without, table.unpack(pair.prefill) }
  end,
  may = { fast = TIMED:format(550), slow = TIMED:format(50) },
}

-- Points whose files begin so, by rising shares, behind none.
local function way(beginning, words)
  return function(_, pair)
    local list = { { words = words, share = 0, loss = 0, loss_low = 0, loss_high = 0 } }
    for _, point in ipairs(pair.prefill) do
      local share = point.file:match("^" .. beginning .. "%-([%d.]+)$")
      local record = setmetatable({ words = words, share = tonumber(share) }, { __index = point })
      if share then table.insert(list, record) end
    end
    table.sort(list, function(a, b) return a.share < b.share end)
    return list
  end
end

local low_copies = {
  each = "pairs",
  { "Fate, Fig. 10 and Table 3: prompts of INT{bits} with unpopular experts at INT{low_bits}",
    "A quarter of the experts in memory. 'unpopular' goes by what calibration and earlier blocks of the prompt took, "
      .. "'whole' by the prompt's own counts, 'popular' by these the other way round. Blocks of half a window: the "
      .. "other half is not a prompt, as on the paper's two machines.",
    name = "prefill_{bits}_{low_bits}", records = LOW_COPIES,
    columns = { { "prompts", "{setting}" }, { "low, % of choices", "{taken_low_share:1%}" }, page.LOSS, page.INTERVAL,
      { "KiB a prompt", "{fast.prompt_bytes / 1024:1}" }, { "ms at 550 MB/s", "{fast.ttft_ms:2}" },
      { "its floor, ms", "{fast.prompt_floor_ms:2}" }, { "ms at 50 MB/s", "{slow.ttft_ms:2}" },
      { "its floor, ms", "{slow.prompt_floor_ms:2}" } } },
  { kind = "lines", name = "unpopular_{bits}_{low_bits}", source = "Fate, Fig. 10", by = "{words}",
    title = "Loss by the share of a prompt's experts in INT{low_bits} instead of INT{bits}",
    records = { way("whole", "by the whole prompt's counts"), way("unpopular", "by calibration's counts"),
      way("popular", "most popular first, by the whole prompt's counts") },
    x = { "share_percent", "experts of a layer in the low copy, %", "100 * share" }, low = "100 * loss_low",
    high = "100 * loss_high", y = { "loss_percent", "loss of perplexity, %", "100 * loss", has_zero = true },
    caption = "Every token is a prompt's. The paper's figure has the first and the last line." },
}

-- ---- bits and times ----

local STRATEGIES = {
  { "load on demand, 16 bits", "demand" }, { "load on demand, INT4", "demand_int4" },
  { "16 bits with a cache", "cached" }, { "INT4 with a cache", "cached_int4" }, { "activation paths, INT4", "paths" },
  { "Fate", "fate" }, { "Fate, INT2 at mispredictions", "low" },
}

-- Each strategy at all places: those that were timed (`key` "at") or all ("may").
local function strategies(rate, places, key)
  local list = {}
  for s, one in ipairs(STRATEGIES) do
    list[s] = { over = places, where = "#fate > 0", [key] = { row = measures.timed(one[2], rate) },
      with = { strategy = one[1] } }
  end
  return list
end

local function by_place(rate)
  local list = {}
  for _, place in ipairs(measures.PLACES) do table.insert(list, strategies(rate, { place }, "at")) end
  return list
end

local function times(rate)
  return { "Fate, Fig. 11 to 14: prompts and tokens at " .. rate .. " MB/s", name = "fate_" .. rate,
    records = by_place(rate),
    columns = { { "prompt, tokens", "{prompt}" }, { "memory, % of INT4 experts", "{memory}" },
      { "strategy", "{strategy}" }, page.PROMPT, { "prompt, tokens a second", "{1000 * prompt / ttft_ms:0}" },
      page.TOKEN, page.SPEED, page.HITS, page.READS } }
end

local function prompts_chart(rate)
  return { kind = "lines", name = "fate_prompts_" .. rate,
    title = "Speed of prompts by their length, " .. rate .. " MB/s", source = "Fate, Fig. 11",
    x = { "tokens", "tokens of a prompt", "prompt" }, by = "{strategy}",
    y = { "tokens_per_second", "tokens a second", "1000 * prompt / ttft_ms", has_zero = true },
    records = strategies(rate, joins.cross { "prompt", { 128, 256, 512 }, "memory", { 25 } }, "may"),
    caption = "A quarter of the experts at INT4 fit into memory." }
end

local function tokens_chart(rate)
  return { kind = "lines", name = "fate_tokens_" .. rate, title = "Speed of tokens by memory, " .. rate .. " MB/s",
    source = "Fate, Fig. 12 to 14", x = { "memory_percent", "memory, % of the experts at INT4", "memory" },
    y = { "tokens_per_second", "tokens a second", "1000 / tpot_ms_median", has_zero = true }, by = "{strategy}",
    records = strategies(rate, joins.cross { "prompt", { 128 }, "memory", { 12.5, 25, 50, 75 } }, "may"),
    caption = "After prompts of 128 tokens. Load on demand keeps no experts." }
end

return {
  { "Fate, Fig. 9: tokens of a prompt by popularity of their experts", name = "popular", records = popular_shares,
    columns = { { "MoE layer", "{layer}" }, { "experts that a prompt takes", "{active:1}" },
      { "tokens of the 10 % least popular, %", "{shares[1]:1%}" },
      { "of the 30 % least popular, %", "{shares[2]:1%}" }, { "of the 50 % least popular, %", "{shares[3]:1%}" } },
    given = { { "Qwen1.5-MoE, the paper's, layer 6", "55.9 of 60 on average", "–", "15", "–" } } },
  { kind = "lines", name = "popular_experts", title = "Tokens of a prompt that its least popular experts cover",
    source = "Fate, Fig. 9", x = { "layer", "MoE layer", "layer", is_whole = true },
    by = "{100 * part} % least popular",
    y = { "tokens_percent", "choices of a prompt's tokens, %", "100 * share", has_zero = true },
    records = { measures.popular(0.1), measures.popular(0.3), measures.popular(0.5) },
    of = { profile = "profile.h5:" },
    caption = "Of the experts that a prompt takes, each window of {profile.seq_len_tokens} tokens being a prompt." },
  low_copies,
  { "Fate, Table 2: all experts at one bitwidth", name = "bits",
    records = { over = "profile.h5:uniform", let = { model = "name" } },
    columns = { { "bits of all experts", "{bits}" }, { "model", "{model}" },
      { "loss, % (perplexity; the paper's: MMLU)", "{loss:2%}" } },
    given = { { "8", "Qwen1.5-MoE, the paper's", "0" }, { "4", "Qwen1.5-MoE, the paper's", "0.3" },
      { "2", "Qwen1.5-MoE, the paper's", "7.6" } } },
  times(550), prompts_chart(550), tokens_chart(550), times(50), prompts_chart(50), tokens_chart(50),
}
