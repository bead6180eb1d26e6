-- The part of the report about cache-conditional experts: tables and charts.
local decisions = require "decisions_measures"
local joins = require "joins"
local measures = require "cache_prior_measures"
local page = require "page"

local SETTING = { "routing", "{method == 'top-k' and \"the router's own\" or setting}" }
local MISSES = { "misses, %", "{miss_rate:1%}" }

-- Each method's settings that no other one of it beats, by falling misses.
local function fronts(size)
  return function(sample)
    local records = {}
    for _, method in ipairs(decisions.METHODS) do
      local front = decisions.front(sample, method, sample[size])
      for i = #front, 1, -1 do table.insert(records, front[i].method == method and front[i] or nil) end
    end
    return records
  end
end

-- What lines join, by rising misses: beyond a loss of 10 % nobody chooses, and what is chosen would lie on the axis.
local function joined(size)
  return function(sample)
    local records = {}
    for m = 2, #decisions.METHODS do
      local front = decisions.front(sample, decisions.METHODS[m], sample[size])
      for _, point in ipairs(#front > 1 and front or {}) do -- else the router's own choice alone
        local record = setmetatable({ front = decisions.METHODS[m] }, { __index = point })
        if point.loss <= 0.1 then table.insert(records, record) end
      end
    end
    return records
  end
end

local function front_table(size, heading, paragraph)
  return { heading, paragraph, name = "routes_{" .. size .. "}", records = fronts(size),
    columns = { SETTING, { "best kept", "{keep_top}" }, MISSES, page.LOSS, page.INTERVAL,
      { "Belady's misses, %", "{belady_rate:1%}" } } }
end

local function front_chart(size, figures)
  return { kind = "lines", name = "fronts_{" .. size .. "}", source = "Cache-conditional experts, Fig. " .. figures,
    title = "Loss by misses, {" .. size .. "} of {n_expert} experts of a layer in the cache", records = joined(size),
    x = { "misses_percent", "experts that miss the cache, % of those chosen", "100 * miss_rate" },
    y = { "loss_percent", "loss of perplexity, %", "100 * loss" }, low = "100 * loss_low", high = "100 * loss_high",
    by = "{front}", of = { plain = "routes/top-k-{" .. size .. "}:" },
    uprights = { { "100 * plain.miss_rate", "LRU" }, { "100 * plain.belady_rate", "Belady" } },
    caption = "Each line joins the settings that no other one of the method beats, whatever number of best experts "
      .. "they keep; losses above 10 % are in the table alone. The router's own choice misses {plain.miss_rate:1%} % "
      .. "with LRU and {plain.belady_rate:1%} % by Belady's rule, which knows the future." }
end

-- Misses at every size that was measured, of the best prior within a limit.
local function within(line, limit)
  return { over = "routes", where = "method == 'top-k'",
    with = {
      line = line,
      rate = function(point, sample) return (decisions.fewest(sample, point.slots, limit) or {}).miss_rate end,
    } }
end

local TABLE_2 = {
  { "Qwen1.5-MoE, the paper's", "30 / 60", "original", "26", "31", "35" },
  { "Qwen1.5-MoE, the paper's", "30 / 60", "cache-prior:0.5, J = 2", "58", "67", "16" },
  { "DeepSeek-V2, the paper's", "32 / 64", "original", "19", "17", "28" },
  { "DeepSeek-V2, the paper's", "32 / 64", "cache-prior:0.5, J = 2", "76", "90", "7" },
  { "Phi-3.5-MoE, the paper's", "8 / 16", "original", "22", "31", "22" },
  { "Phi-3.5-MoE, the paper's", "8 / 16", "cache-prior:0.5, J = 1", "55", "94", "9" },
  { "Mixtral-8x7B, the paper's", "4 / 8", "original", "5", "4", "40" },
  { "Mixtral-8x7B, the paper's", "4 / 8", "cache-prior:0.5, J = 1", "10", "10", "21" },
}

local ACTIONS = {
  { "drop", "dropped" }, { "cut", "dropped with those after it" }, { "replace", "replaced by the best unchosen one" },
  { "random swap", "replaced by a random one" },
}

local RANKS = {
  over = function(sample)
    local ranks = {}
    for rank = 1, sample.top_k do ranks[rank] = rank end
    return joins.cross { "action", ACTIONS, "rank", ranks }
  end,
  at = { loss = "studies.h5:rank/loss[{action[1]}, {rank}]" },
  may = { loss_low = "studies.h5:rank/loss_low[{action[1]}, {rank}]",
    loss_high = "studies.h5:rank/loss_high[{action[1]}, {rank}]" },
}

local SPEEDS = {
  measures.speeds("half", 50), measures.speeds("half", 350), measures.speeds("three_quarters", 50),
  measures.speeds("three_quarters", 350),
}

return {
  front_table("half", "Routing that prefers the cache: loss and misses", "The checkpoint against itself. Each "
    .. "method's settings that no other one of it beats, by falling misses; Belady's misses are those of the very "
    .. "experts that each setting took."),
  front_chart("half", "4 and 9"), front_table("quarter"), front_chart("quarter", "14"),
  { kind = "lines", name = "sizes", title = "Misses by the size of the cache",
    source = "Cache-conditional experts, Fig. 10",
    x = { "slots", "experts of a layer that the cache holds", "slots", is_whole = true }, by = "{line}",
    y = { "misses_percent", "experts that miss the cache, %", "100 * rate", has_zero = true },
    records = { { over = "routes", where = "method == 'top-k'", with = { line = "LRU" },
        let = { rate = "miss_rate" } },
      { over = "routes", where = "method == 'top-k'", with = { line = "Belady" }, let = { rate = "belady_rate" } },
      within("cache-prior, 1 % loss", 0.01), within("cache-prior, 5 % loss", 0.05),
      within("cache-prior, 10 % loss", 0.1) },
    caption = "Of cache-prior the setting with the fewest misses among those that lose at most so much of the "
      .. "perplexity." },
  { "Table 2: how long experts stay in the cache", name = "stays", given = TABLE_2,
    records = { over = "routes",
      where = "(keep_top == 0 or keep_top == usual_keep) and (method == 'top-k' or method == 'cache-prior') and "
        .. "(slots == half or slots == quarter)",
      let = { model = "name" } },
    columns = { { "model", "{model}" }, { "cache", "{slots} / {n_expert}" },
      { "routing", "{method == 'top-k' and 'original' or setting .. ', J = ' .. keep_top}" },
      { "stay, tokens", "{stay_tokens_mean:1}" }, { "its deviation", "{stay_tokens_deviation:1}" }, MISSES } },
  { "Fig. 18: what the cache holds at first", name = "starts", records = "starts/*",
    columns = { SETTING, { "the cache at first", "{cache_start == 'frequency' and 'by frequency' or 'empty'}" },
      MISSES, page.LOSS, page.INTERVAL } },
  { "Fig. 15: the range that a prior is a share of", name = "ranges", records = "ranges/*",
    columns = { SETTING, MISSES, page.LOSS, page.INTERVAL } },
  { "Fig. 2: experts dropped and exchanged by rank", name = "ranks", records = RANKS,
    columns = { { "expert", "{action[2]}" }, { "rank", "{rank}" }, page.LOSS, page.INTERVAL } },
  { charts = { "rank_loss" }, records = "studies.h5:" },
  { "Appendix A: the best expert in the place of a token's last", name = "choices", records = measures.CHOICES,
    columns = { { "MoE layer", "{layer}" }, { "the router's last expert is the best, % of tokens", "{share:1%}" } },
    given = { { "Mixtral-8x7B, the paper's: mean", "28" }, { "Mixtral-8x7B, the paper's: last", "38" } } },
  { "Fig. 8 and 17: throughput by hits and by the length of the prompt",
    "Here a prior decides the prompt's experts, too; the paper's only those of generated tokens.",
    name = "throughput", records = SPEEDS,
    columns = { { "slots", "{slots}" }, { "prompt, tokens", "{prompt}" }, { "L", "{prior}" }, page.HITS, page.TOKEN,
      page.SPEED, { "times the speed without", "{times:2}" }, page.READS } },
  { kind = "lines", name = "speed_by_hits", title = "Speed of generation by hits, with priors of 0 to 0.9",
    records = SPEEDS, source = "Cache-conditional experts, Fig. 8 and 17",
    by = "{slots} experts, {prompt} tokens of prompt",
    x = { "hits_percent", "experts that were in memory, %", "100 * hit_rate" },
    y = { "times", "times the speed of LRU without a prior", "times", has_zero = true },
    caption = "Storage of 550 MB/s; each line against its own LRU." },
}
