-- Cache-conditional experts (Skliar et al., arXiv:2412.00099): what the paper says. claims.lua tells what a claim is.
local decisions = require "decisions_measures"
local measures = require "cache_prior_measures"

local PLAIN = "routes/top-k-{half}:"

-- Points of other methods, with the loss of a method's front at as many misses, all keeping as many experts as the
-- paper. Settings too mild to spare a miss are the router's own: there is nothing to beat.
local function beside_front(sample, slots, better, others)
  local list, none = {}, sample.results:load("routes/top-k-" .. slots)
  local front = decisions.front(sample, better, slots, sample.usual_keep)
  for _, method in ipairs(none and others or {}) do
    for _, point in ipairs(sample.routes) do
      local is_kept = method == "prune" or point.keep_top == sample.usual_keep
      local is_its = point.method == method and point.slots == slots and is_kept
      local loss = is_its and point.experts_missed <= 0.999 * none.experts_missed
        and decisions.front_loss(front, point.miss_rate)
      if loss then table.insert(list, { point = point, loss = loss, is_beaten = loss <= point.loss }) end
    end
  end
  return list
end

local function order(figure, paper, size, better, others)
  return {
    figure, paper, better = better,
    of = { points = function(sample) return beside_front(sample, sample[size], better, others) end },
    says = "{better} loses less at as many misses than {count(points, 'is_beaten')} of {#points} settings of the "
      .. "others (J = {usual_keep})",
    holds = "count(points, 'is_beaten') == #points",
    let = { unbeaten = "top(points, 'is_beaten and 0 or 1').point" },
    unless = "{unbeaten.setting} loses {unbeaten.loss:2%} % at {unbeaten.miss_rate:1%} % misses" }
end

local OTHERS = { "prune", "max-rank", "cumsum" }

-- At every size that was measured, all experts left out: misses of the router's own choice, of Belady's rule, and of
-- the best prior within a limit of the loss. The paper goes down to one expert; a cache has at least a token's experts
-- here, where LRU and Belady's rule miss alike.
local function sizes(percent, but)
  return {
    "Fig. 10", "with " .. percent .. " % more perplexity cache-prior misses less than Belady's rule at all cache "
      .. "sizes" .. but .. " (here those of {top_k} experts and more)",
    of = {
      sizes = {
        over = "routes", where = "method == 'top-k' and slots < n_expert",
        with = {
          best = function(point, sample) return decisions.fewest(sample, point.slots, percent / 100) or point end,
        } } },
    says = "at {count(sizes, 'best.experts_missed < belady_missed')} of {#sizes} sizes",
    holds = "count(sizes, 'best.experts_missed < belady_missed') == #sizes",
    unless = "{list(sizes, 'best.experts_missed >= belady_missed', \"{slots} slots: {best.miss_rate:1%} %, Belady's "
      .. "rule {belady_rate:1%} %\")}" }
end

-- Settings of a method that keep J of a token's best experts, and the same that keep none, with half of the experts
-- cached; `ending` is that of the latters' files.
local function kept(method, ending)
  return { over = "routes",
    where = "method == '" .. method .. "' and slots == half and keep_top == most_kept and keep_top > 0",
    at = { free = "routes/{file:gsub('%-keep.*', '" .. ending .. "')}:" }, let = { spared = "free.loss - loss" } }
end

-- Steps of the prior that change hits: once everything is hit, a stronger one has nothing left to change.
local STEP = "math.abs(to.hit_rate - from.hit_rate) >= 0.001"
local RISE = STEP .. " and to.hit_rate > from.hit_rate and to.times > from.times"

local function throughput(size)
  local speeds = measures.speeds(size, 50)
  return { "Fig. 8",
    "as L rises the hit rate improves and throughput increases, nearly linearly (here {" .. size
      .. "} of {n_expert} experts cached)",
    of = { speeds = speeds, steps = setmetatable({ is_steps = true }, { __index = speeds }) },
    says = "both rise at {count(steps, '" .. RISE .. "')} of {count(steps, '" .. STEP .. "')} steps of L that change "
      .. "hits; correlation {correlation(speeds, 'hit_rate', 'times'):3}; {speeds[1].hit_rate:1%} to "
      .. "{speeds[#speeds].hit_rate:1%} % hits, at last {speeds[#speeds].times:2} times as fast",
    holds = "speeds[3] and count(steps, '" .. RISE .. "') == count(steps, '" .. STEP .. "')",
    unless = "{list(steps, '" .. STEP .. " and not (" .. RISE .. ")', '{from.hit_rate:1%} to {to.hit_rate:1%} % hits: "
      .. "{from.times:2} to {to.times:2} times')}" }
end

return {
  { "abstract", "cache miss rates fall by over 50 %, at a perplexity 0.1 to 3 % higher",
    of = { plain = PLAIN, best = function(sample) return decisions.fewest(sample, sample.half, 0.03) end },
    says = "{best.setting}: {1 - best.experts_missed / plain.experts_missed:0%} % fewer at a loss of {interval(best)} "
      .. "%",
    holds = "1 - best.experts_missed / plain.experts_missed > 0.5" },
  order("Fig. 4", "half of the experts: cache-prior consistently outperforms all baselines, across all ranges of "
    .. "perplexity and misses", "half", "cache-prior", OTHERS),
  order("Fig. 14", "a quarter of the experts: cache-prior outperforms all other methods across the board", "quarter",
    "cache-prior", OTHERS),
  order("Fig. 4", "max-rank consistently surpasses pruning", "half", "max-rank", { "prune" }),
  order("Fig. 4", "cumsum consistently outperforms max-rank", "half", "cumsum", { "max-rank" }),
  { "Fig. 9", "Belady's rule roughly halves the miss rates of LRU", of = { plain = PLAIN },
    says = "half of the experts: LRU misses {plain.miss_rate:1%} %, Belady's rule {plain.belady_rate:1%} %, "
      .. "{plain.belady_missed / plain.experts_missed:2} times as many" },
  sizes(1, " (Phi-3.5-MoE excepted)"), sizes(5, ""),
  { "Table 2", "with L = 0.5 experts stay 5 to 9 times longer (in the table itself 2.0 to 4.0 times)",
    of = { plain = PLAIN, prior = "routes/prior-0.5-{half}-keep-{usual_keep}:", },
    says = "{prior.stay_tokens_mean / plain.stay_tokens_mean:1} times: {prior.stay_tokens_mean:1} tokens instead of "
      .. "{plain.stay_tokens_mean:1}, at a loss of {prior.loss:2%} % (J = {prior.keep_top})",
    holds = "prior.stay_tokens_mean / plain.stay_tokens_mean >= 5" },
  { "section 4.8", "without the top J experts max-rank and cumsum drop significantly; cache-prior is more robust",
    of = { prior = kept("cache-prior", ""), rank = kept("max-rank", "-keep-0"), cumsum = kept("cumsum", "-keep-0") },
    says = "J = 0 instead of {most_kept} costs max-rank {mean(rank, 'spared'):2%}, cumsum {mean(cumsum, 'spared'):2%} "
      .. "and cache-prior {mean(prior, 'spared'):2%} points of loss on the average of their settings" },
  { "Fig. 18", "with L = 0.5 and J = 1 what the cache holds at first has minimal long-term impact",
    of = { empty = "starts/prior-0.5-empty:", filled = "starts/prior-0.5-frequency:" },
    says = "empty: loss {interval(empty)} %, {empty.miss_rate:1%} % misses; filled by frequency: {interval(filled)} "
      .. "%, {filled.miss_rate:1%} %" },
  { "Fig. 15", "the running average of the range performs comparably to that of calibration",
    of = { ranges = { over = "ranges", where = "file:find('-running', 1, true)",
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
    of = { layers = measures.CHOICES },
    says = "for {mean(layers, 'share'):0%} %, over {#layers} layers, of {top_k} experts a token" },
  { "appendix A", "it is so most often, for 38 %, in the last layer", of = { layers = measures.CHOICES },
    says = "most often, for {most(layers, 'share'):0%} %, in MoE layer {top(layers, 'share').layer} of {n_layer}; in "
      .. "the last for {layers[#layers].share:0%} %",
    holds = "layers[#layers].share == most(layers, 'share')" },
  throughput "half", throughput "three_quarters",
  { "section 4.5", "on the device over 2 times faster than with LRU", of = { speeds = measures.speeds("half", 50) },
    says = "{most(speeds, 'times'):2} times, half of the experts in memory, 550 MB/s",
    holds = "speeds[2] and most(speeds, 'times') > 2",
    unless = "of {speeds[1].tpot_ms_median:3} ms a token without a prior {speeds[1].compute_ms:3} are computing" },
  { "Fig. 8 and 17", "across all values of L longer prompts yield higher throughput (of generated tokens)",
    of = { settings = measures.LENGTHS },
    says = "with 350 instead of 50 tokens of prompt at {count(settings, 'short / long > 1')} of {#settings} settings, "
      .. "{least(settings, 'short / long'):2} to {most(settings, 'short / long'):2} times",
    holds = "count(settings, 'short / long > 1') == #settings" },
}
