-- Cache-conditional experts (Skliar et al., arXiv:2412.00099): what the paper says, and the tables and charts of its
-- part of the report. claims.lua tells what a claim is, page.lua what an entry of the page is.
local decisions = require "decisions_measures"
local joins = require "joins"
local page = require "page"

local PLAIN = "routes/top-k-{half}:"

-- Shares of tokens whose last expert is the best one in its place, by MoE layer.
local CHOICES = { over = "layers", at = { share = "studies.h5:choice/right[#{layer}]" } }

-- A token by prior, of which 0 is the router's own choice, slots and tokens of prompt.
local function timed(prior, prompt)
  return "throughput/prior-" .. prior .. "-{slots}-" .. prompt .. ":rows[cache {100 * slots / n_expert} 550]"
end

-- What was timed behind prompts of so many tokens.
local function settings(...)
  local prompts = { ... }
  return function(sample)
    local slots = { sample.half, sample.caches.three_quarters }
    return joins.cross { "slots", slots, "prompt", prompts, "prior", { 0, 0.1, 0.3, 0.5, 0.7, 0.9 } }
  end
end

-- Times of a token, as multiples of those without a prior.
local SPEEDS = { over = settings(50, 350), let = { speed = "times(row, none)" },
  at = { row = timed("{prior}", "{prompt}"), none = timed(0, "{prompt}") } }

-- Of these, those behind short prompts, with the record's size of the cache.
local SHORT = { over = SPEEDS, where = "prompt == 50 and slots == caches[size]" }

-- ---- claims ----

-- Points of other methods, with the loss of a method's front at as many misses, all keeping as many experts as the
-- paper. Settings too mild to spare a miss are the router's own: there is nothing to beat.
local function order(figure, paper, size, better, ...)
  local points = {}
  for o, other in ipairs { ... } do
    points[o] = { over = "routes", where = "experts_missed <= 0.999 * none.experts_missed and slots == " .. size
        .. " and method == '" .. other .. "' and (method == 'prune' or keep_top == usual_keep)",
      at = { none = "routes/top-k-{" .. size .. "}:", front_loss = function(sample, point)
        local front = decisions.front(sample, better, sample[size], sample.usual_keep)
        return decisions.front_loss(front, point.miss_rate)
      end } }
  end
  return { figure, paper, better = better, of = { points = points },
    let = { n_beaten = "count(points, 'front_loss <= loss')",
      unbeaten = "top(points, 'front_loss <= loss and 0 or 1')" },
    says = "{better} loses less at as many misses than {n_beaten} of {#points} settings of the others (J = "
      .. "{usual_keep})",
    holds = "n_beaten == #points",
    unless = "{unbeaten.setting} loses {unbeaten.loss:2%} % at {unbeaten.miss_rate:1%} % misses" }
end

-- Settings that keep J of a token's best experts, and the same that keep none, with half of the experts cached.
local function kept(method)
  return { over = "routes", let = { spared = "free.loss - loss" },
    at = { free = "routes/{file:gsub('%-keep.*', method == 'cache-prior' and '' or '-keep-0')}:" },
    where = "method == '" .. method .. "' and slots == half and keep_top == most_kept and keep_top > 0" }
end

-- Steps of the prior that change hits: once everything is hit, a stronger one has nothing left to change.
local STEP = "math.abs(to.hit_rate - from.hit_rate) >= 0.001"
local RISE = STEP .. " and to.hit_rate > from.hit_rate and to.speed > from.speed"

local findings = {
  { "abstract", "cache miss rates fall by over 50 %, at a perplexity 0.1 to 3 % higher",
    of = { plain = PLAIN, best = function(sample) return decisions.fewest(sample, sample.half, 0.03) end },
    let = { fewer = "less(best.experts_missed, plain.experts_missed)" },
    says = "{best.setting}: {fewer:0%} % fewer at a loss of {interval(best)} %", holds = "fewer > 0.5" },
  order("Fig. 4", "half of the experts: cache-prior consistently outperforms all baselines, across all ranges of "
    .. "perplexity and misses", "half", "cache-prior", "prune", "max-rank", "cumsum"),
  order("Fig. 14", "a quarter of the experts: cache-prior outperforms all other methods across the board", "quarter",
    "cache-prior", "prune", "max-rank", "cumsum"),
  order("Fig. 4", "max-rank consistently surpasses pruning", "half", "max-rank", "prune"),
  order("Fig. 4", "cumsum consistently outperforms max-rank", "half", "cumsum", "max-rank"),
  { "Fig. 9", "Belady's rule roughly halves the miss rates of LRU", of = { plain = PLAIN },
    says = "half of the experts: LRU misses {plain.miss_rate:1%} %, Belady's rule {plain.belady_rate:1%} %, "
      .. "{plain.belady_missed / plain.experts_missed:2} times as many" },
  -- At every size that was measured but all experts: misses of the router's own choice, of Belady's rule, and of the
  -- best prior within a limit of the loss. The paper goes down to one expert; a cache has at least a token's experts
  -- here, where LRU and Belady's rule miss alike.
  { each = { { percent = 1, but = " (Phi-3.5-MoE excepted)" }, { percent = 5, but = "" } },
    { "Fig. 10", "with {percent} % more perplexity cache-prior misses less than Belady's rule at all cache sizes{but} "
      .. "(here those of {top_k} experts and more)",
      of = { sizes = { over = "routes", where = "method == 'top-k' and slots < n_expert",
        at = { best = function(sample, point, claim)
          return decisions.fewest(sample, point.slots, claim.percent / 100) or point
        end } } },
      let = { n_less = "count(sizes, 'best.experts_missed < belady_missed')" },
      says = "at {n_less} of {#sizes} sizes", holds = "n_less == #sizes",
      unless = "{list(sizes, 'best.experts_missed >= belady_missed', \"{slots} slots: {best.miss_rate:1%} %, Belady's "
        .. "rule {belady_rate:1%} %\")}" } },
  { "Table 2", "with L = 0.5 experts stay 5 to 9 times longer (in the table itself 2.0 to 4.0 times)",
    of = { plain = PLAIN, prior = "routes/prior-0.5-{half}-keep-{usual_keep}:" },
    let = { longer = "prior.stay_tokens_mean / plain.stay_tokens_mean" },
    says = "{longer:1} times: {prior.stay_tokens_mean:1} tokens instead of {plain.stay_tokens_mean:1}, at a loss of "
      .. "{prior.loss:2%} % (J = {prior.keep_top})",
    holds = "longer >= 5" },
  { "section 4.8", "without the top J experts max-rank and cumsum drop significantly; cache-prior is more robust",
    of = { prior = kept "cache-prior", rank = kept "max-rank", cumsum = kept "cumsum" },
    says = "J = 0 instead of {most_kept} costs max-rank {mean(rank, 'spared'):2%}, cumsum {mean(cumsum, 'spared'):2%} "
      .. "and cache-prior {mean(prior, 'spared'):2%} points of loss on the average of their settings" },
  { "Fig. 18", "with L = 0.5 and J = 1 what the cache holds at first has minimal long-term impact",
    of = { empty = "starts/prior-0.5-empty:", filled = "starts/prior-0.5-frequency:" },
    says = "empty: loss {interval(empty)} %, {empty.miss_rate:1%} % misses; filled by frequency: {interval(filled)} "
      .. "%, {filled.miss_rate:1%} %" },
  { "Fig. 15", "the running average of the range performs comparably to that of calibration",
    of = { ranges = { over = "ranges/*", where = "file:find('-running', 1, true)",
      at = { calibrated = "ranges/{file:gsub('running', 'calibrated')}:" } } },
    says = "{list(ranges, 'true', 'L = {strength}: loss {loss:2%} and {calibrated.loss:2%} %, misses {miss_rate:1%} "
      .. "and {calibrated.miss_rate:1%} %')}" },
  { "Fig. 2", "dropping the second expert and those after it leads to a performance drop",
    of = { loss = "studies.h5:rank/loss[cut, 2]", low = "studies.h5:rank/loss_low[cut, 2]",
      high = "studies.h5:rank/loss_high[cut, 2]", last = "studies.h5:rank/loss[cut, {top_k}]" },
    says = "loss {loss:2%} ({low:2%} to {high:2%}) %; the last expert alone {last:2%} %", holds = "low > 0" },
  { "Fig. 2",
    "a random expert in the place of the first severely compromises the model, of the second noticeably; granular "
      .. "models lose minimally from the third on",
    of = { first = "studies.h5:rank/loss[random swap, 1]", second = "studies.h5:rank/loss[random swap, 2]",
      third = "studies.h5:rank/loss[random swap, 3]" },
    says = "in the place of the first {first:2%} %, the second {second:2%} %, the third {third:2%} %" },
  { "appendix A", "the router's last expert is the best one in its place for 28 % of the tokens",
    of = { layers = CHOICES },
    says = "for {mean(layers, 'share'):0%} %, over {#layers} layers, of {top_k} experts a token" },
  { "appendix A", "it is so most often, for 38 %, in the last layer", of = { layers = CHOICES },
    let = { best = "top(layers, 'share')" },
    says = "most often, for {best.share:0%} %, in MoE layer {best.layer} of {n_layer}; in the last for "
      .. "{layers[#layers].share:0%} %",
    holds = "layers[#layers].share == best.share" },
  { each = { { size = "half" }, { size = "three_quarters" } },
    { "Fig. 8", "as L rises the hit rate improves and throughput increases, nearly linearly (here {caches[size]} of "
      .. "{n_expert} experts cached)",
      of = { speeds = SHORT, steps = { over = SHORT, is_steps = true } },
      let = { n_rise = "count(steps, '" .. RISE .. "')", n_step = "count(steps, '" .. STEP .. "')" },
      says = "both rise at {n_rise} of {n_step} steps of L that change hits; correlation {correlation(speeds, "
        .. "'hit_rate', 'speed'):3}; {speeds[1].hit_rate:1%} to {speeds[#speeds].hit_rate:1%} % hits, at last "
        .. "{speeds[#speeds].speed:2} times as fast",
      holds = "speeds[3] and n_rise == n_step",
      unless = "{list(steps, '" .. STEP .. " and not (" .. RISE .. ")', '{from.hit_rate:1%} to {to.hit_rate:1%} % "
        .. "hits: {from.speed:2} to {to.speed:2} times')}" } },
  { "section 4.5", "on the device over 2 times faster than with LRU",
    of = { speeds = { over = SPEEDS, where = "prompt == 50 and slots == half" } },
    says = "{most(speeds, 'speed'):2} times, half of the experts in memory, 550 MB/s",
    holds = "speeds[2] and most(speeds, 'speed') > 2",
    unless = "of {speeds[1].tpot_ms_median:3} ms a token without a prior {speeds[1].compute_ms:3} are computing" },
  { "Fig. 8 and 17", "across all values of L longer prompts yield higher throughput (of generated tokens)",
    of = { settings = { over = settings(50), at = { short = timed("{prior}", 50), long = timed("{prior}", 350) },
      let = { speedup = "times(long, short)" } } },
    let = { n_faster = "count(settings, 'speedup > 1')" },
    says = "with 350 instead of 50 tokens of prompt at {n_faster} of {#settings} settings, {least(settings, "
      .. "'speedup'):2} to {most(settings, 'speedup'):2} times",
    holds = "n_faster == #settings" },
}

-- ---- the page ----

local SETTING = "routing: {method == 'top-k' and \"the router's own\" or setting}"
local SOURCE = "Cache-conditional experts, Fig. "

-- Of each method the settings that no other one of it beats, with caches of the record's size, by falling misses; and
-- what lines join of these, nothing where it is the router's own choice alone. Beyond a loss of 10 % nobody chooses,
-- and what is chosen would lie on the axis.
local FRONTS, LINES = {}, {}
for m, method in ipairs { "top-k", "cache-prior", "max-rank", "cumsum", "prune" } do
  local function front(sample, record) return decisions.front(sample, method, sample.caches[record.size]) end
  FRONTS[m] = { over = front, where = "method == '" .. method .. "'", let = { hits = "-miss_rate" }, by = "hits" }
  LINES[m] = { with = { front = method }, where = "loss <= 0.1",
    over = function(sample, record) return #front(sample, record) > 1 and front(sample, record) or {} end }
end
table.remove(LINES, 1)

-- Misses at every size of the cache, as an expression tells them; `best` is the best prior within a limit of the loss.
local function misses(line, rate, limit)
  return { over = "routes", where = "method == 'top-k'", with = { line = line }, let = { rate = rate },
    may = { best = function(sample, point) return decisions.fewest(sample, point.slots, limit or 0) end } }
end

local entries = {
  { each = { { size = "half", figures = "4 and 9" }, { size = "quarter", figures = "14" } },
    { { "size == 'half'", "Routing that prefers the cache: loss and misses" },
      { "size == 'half'", "The checkpoint against itself. Each method's settings that no other one of it beats, by "
        .. "falling misses; Belady's misses are those of the very experts that each setting took." },
      name = "routes_{caches[size]}", records = FRONTS,
      columns = { SETTING, "best kept: {keep_top}", page.MISSES, page.LOSS, page.INTERVAL,
        "Belady's misses, %: {belady_rate:1%}" } },
    { kind = "lines", name = "fronts_{caches[size]}", source = SOURCE .. "{figures}", records = LINES,
      title = "Loss by misses, {caches[size]} of {n_expert} experts of a layer in the cache", by = "{front}",
      x = { "misses_percent", "experts that miss the cache, % of those chosen", "100 * miss_rate" },
      y = { "loss_percent", "loss of perplexity, %", "100 * loss" }, has_interval = true,
      of = { plain = "routes/top-k-{caches[size]}:" },
      uprights = { { "100 * plain.miss_rate", "LRU" }, { "100 * plain.belady_rate", "Belady" } },
      caption = "Each line joins the settings that no other one of the method beats, whatever number of best experts "
        .. "they keep; losses above 10 % are in the table alone. The router's own choice misses {plain.miss_rate:1%} % "
        .. "with LRU and {plain.belady_rate:1%} % by Belady's rule, which knows the future." } },
  { kind = "lines", name = "sizes", title = "Misses by the size of the cache", source = SOURCE .. "10",
    x = { "slots", "experts of a layer that the cache holds", "slots", is_whole = true }, by = "{line}",
    y = { "misses_percent", "experts that miss the cache, %", "100 * rate", has_zero = true },
    records = { misses("LRU", "miss_rate"), misses("Belady", "belady_rate"),
      misses("cache-prior, 1 % loss", "best.miss_rate", 0.01), misses("cache-prior, 5 % loss", "best.miss_rate", 0.05),
      misses("cache-prior, 10 % loss", "best.miss_rate", 0.1) },
    caption = "Of cache-prior the setting with the fewest misses among those that lose at most so much of the "
      .. "perplexity." },
  { "Table 2: how long experts stay in the cache", name = "stays",
    records = { over = "routes", let = { model = "name" },
      where = "(keep_top == 0 or keep_top == usual_keep) and (method == 'top-k' or method == 'cache-prior') and "
        .. "(slots == half or slots == quarter)" },
    columns = { "model: {model}", "cache: {slots} / {n_expert}",
      "routing: {method == 'top-k' and 'original' or setting .. ', J = ' .. keep_top}",
      "stay, tokens: {stay_tokens_mean:1}", "its deviation: {stay_tokens_deviation:1}", page.MISSES },
    given = { { "Qwen1.5-MoE, the paper's", "30 / 60", "original", "26", "31", "35" },
      { "Qwen1.5-MoE, the paper's", "30 / 60", "cache-prior:0.5, J = 2", "58", "67", "16" },
      { "DeepSeek-V2, the paper's", "32 / 64", "original", "19", "17", "28" },
      { "DeepSeek-V2, the paper's", "32 / 64", "cache-prior:0.5, J = 2", "76", "90", "7" },
      { "Phi-3.5-MoE, the paper's", "8 / 16", "original", "22", "31", "22" },
      { "Phi-3.5-MoE, the paper's", "8 / 16", "cache-prior:0.5, J = 1", "55", "94", "9" },
      { "Mixtral-8x7B, the paper's", "4 / 8", "original", "5", "4", "40" },
      { "Mixtral-8x7B, the paper's", "4 / 8", "cache-prior:0.5, J = 1", "10", "10", "21" } } },
  { "Fig. 18: what the cache holds at first", name = "starts", records = "starts/*",
    columns = { SETTING, "the cache at first: {cache_start == 'frequency' and 'by frequency' or 'empty'}",
      page.MISSES, page.LOSS, page.INTERVAL } },
  { "Fig. 15: the range that a prior is a share of", name = "ranges", records = "ranges/*",
    columns = { SETTING, page.MISSES, page.LOSS, page.INTERVAL } },
  { "Fig. 2: experts dropped and exchanged by rank", name = "ranks",
    records = { over = function(sample)
        return joins.cross { "action", { { "drop", "dropped" }, { "cut", "dropped with those after it" },
          { "replace", "replaced by the best unchosen one" }, { "random swap", "replaced by a random one" } },
          "rank", sample.ranks }
      end, at = { loss = "studies.h5:rank/loss[{action[1]}, {rank}]" },
      may = { loss_low = "studies.h5:rank/loss_low[{action[1]}, {rank}]",
        loss_high = "studies.h5:rank/loss_high[{action[1]}, {rank}]" } },
    columns = { "expert: {action[2]}", "rank: {rank}", page.LOSS, page.INTERVAL } },
  { charts = "rank_loss", records = "studies.h5:" },
  { "Appendix A: the best expert in the place of a token's last", name = "choices", records = CHOICES,
    columns = { "MoE layer: {layer}", "the router's last expert is the best, % of tokens: {share:1%}" },
    given = { { "Mixtral-8x7B, the paper's: mean", "28" }, { "Mixtral-8x7B, the paper's: last", "38" } } },
  { "Fig. 8 and 17: throughput by hits and by the length of the prompt",
    "Here a prior decides the prompt's experts, too; the paper's only those of generated tokens.",
    name = "throughput", records = SPEEDS,
    columns = { "slots: {slots}", "prompt, tokens: {prompt}", "L: {prior}", page.HITS, page.TOKEN, page.SPEED,
      "times the speed without: {speed:2}", page.READS } },
  { kind = "lines", name = "speed_by_hits", title = "Speed of generation by hits, with priors of 0 to 0.9",
    records = SPEEDS, source = SOURCE .. "8 and 17", by = "{slots} experts, {prompt} tokens of prompt",
    x = { "hits_percent", "experts that were in memory, %", "100 * hit_rate" },
    y = { "times", "times the speed of LRU without a prior", "speed", has_zero = true },
    caption = "Storage of 550 MB/s; each line against its own LRU." },
}

return { name = "cache-conditional experts", findings = findings, entries = entries }
