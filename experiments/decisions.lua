-- Decisions per token: the figures that this project set itself to reach, and the report of three papers and of
-- settings with a certificate. claims.lua tells what a claim is, page.lua what an entry of the page is.
local joins = require "joins"
local measures = require "decisions_measures"
local page = require "page"
local template = require "template"

-- ---- figures to reach ----

local PREDICTORS = joins.cross { "predictor", { "none", "frequency", "path", "gate", "path+gate" } }

-- What was timed of bundles in as much memory as a share of the static bundle's experts, by predictor; without sides of
-- that of the record.
local function timed(...)
  return { over = ... and joins.cross({ "side", { ... } }, PREDICTORS) or PREDICTORS, where = "tpot_ms_median > 0",
    at = { row = "decoding/{side}-{share}-{rate}-{predictor}:rows[1]" } }
end

local FASTEST = { still = "top(stills, '-tpot_ms_median')", tuned = "top(tunings, '-tpot_ms_median')" }

local DECODINGS = { { share = 25, rate = 550, asked = 1.35 }, { share = 50, rate = 550, asked = 1.35 },
  { share = 25, rate = 50, asked = 1.6 }, { share = 50, rate = 50, asked = 1.6 } }

local goals = {
  -- The prior with the fewest misses whose loss is at most 1 % with the upper end of its interval, too.
  { each = { { size = "half", share = 0.5, bound = "belady_missed",
        words = "half of the experts: misses at least halved and below Belady's" },
      { size = "quarter", share = 0.6, bound = "experts_missed",
        words = "a quarter of the experts: at least 40 % fewer misses" } },
    { "cache-prior", "{words}, upper end of the loss at most 1 %",
      of = { plain = "routes/top-k-{caches[size]}:",
        priors = { over = "routes", where = "method == 'cache-prior' and slots == caches[size]" },
        milder = { over = "routes", at = { plain = "routes/top-k-{caches[size]}:" },
          where = "method == 'cache-prior' and slots == caches[size] and experts_missed <= share * "
            .. "plain.experts_missed" } },
      let = { best = "top(priors, 'loss_high <= 0.01 and -experts_missed or -1e18')",
        mildest = "top(milder, '-loss_high')" },
      says = { "best.loss_high > 0.01", "no setting has the upper end of its loss within 1 %",
        "{best.setting}, keeping {best.keep_top}: {plain.miss_rate:1%} to {best.miss_rate:1%} % ({less(best.miss_rate, "
          .. "plain.miss_rate):0%} % fewer) at a loss of {interval(best)} %; Belady {plain.belady_rate:1%} %" },
      holds = "plain and best.loss_high <= 0.01 and best.miss_rate <= share * plain.miss_rate and "
        .. "best.experts_missed < plain[bound]",
      unless = { "best.loss_high <= 0.01 and #milder > 0", "{mildest.setting}, keeping {mildest.keep_top}, misses "
        .. "{mildest.miss_rate:1%} % and loses {interval(mildest)} % on {mildest.samples} windows" } } },
  { each = { { size = "half", words = "half of the experts" }, { size = "quarter", words = "a quarter" } },
    { "HOBBIT", "4 to 2 bits, {words}: at least 1.2 times fewer bytes than static INT4, equal buffer",
      of = { still = "pair-4-2/equal-{caches[size]}:", hobbit = "pair-4-2/hobbit-0.6-0.9-{caches[size]}:" },
      let = { ratio = "still.missed_bytes_per_token / hobbit.missed_bytes_per_token" },
      says = "{ratio:2} times: {hobbit.missed_bytes_per_token:1K} KiB a token ({hobbit.slots} slots, "
        .. "{hobbit.low_slots} low ones) against {still.missed_bytes_per_token:1K} KiB ({still.slots} slots), at a "
        .. "loss of {interval(hobbit)} %",
      holds = "ratio >= 1.2" } },
  { each = DECODINGS,
    { "decoding", "{rate} MB/s, {share} % of the experts in memory: tuned decisions at least {asked:2} times faster "
      .. "per token than bits alone at the same certified loss",
      of = { stills = timed "static", tunings = timed("route", "route,precision") }, let = FASTEST,
      says = "{times(tuned, still):2} times: {tuned.side} {tuned.tpot_ms_median:3} ms (preloads: {tuned.predictor}) "
        .. "against {still.tpot_ms_median:3} ms ({still.predictor})",
      holds = "times(tuned, still) >= asked",
      unless = "it reads {tuned.bytes_per_token:1K} KiB a token and finds {tuned.hit_rate:0%} % of its experts in the "
        .. "buffer, bits alone {still.bytes_per_token:1K} KiB and {still.hit_rate:0%} %" } },
  { each = DECODINGS,
    { "HOBBIT", "{rate} MB/s, {share} % of the experts in memory: HOBBIT alone faster than bits alone at the same "
      .. "certified loss",
      of = { stills = timed "static", tunings = timed "precision" }, let = FASTEST,
      says = "{times(tuned, still):2} times: {tuned.tpot_ms_median:3} against {still.tpot_ms_median:3} ms",
      holds = "tuned.tpot_ms_median < still.tpot_ms_median",
      unless = "it reads {tuned.bytes_per_token:1K} KiB a token, bits alone {still.bytes_per_token:1K} KiB" } },
  { each = "pairs",
    { "prompts", "a prompt of {none.prompt_tokens} tokens at INT{bits}, a quarter of the memory, 550 MB/s: within 15 % "
      .. "of max(compute, bytes / bandwidth)",
      of = { row = "prefill-{widths}-times/none:rows[cache 25 550]", none = "prefill-{widths}-times/none:" },
      says = "{row.ttft_ms / row.prompt_floor_ms:2} times the floor: {row.ttft_ms:2} ms against "
        .. "{row.prompt_floor_ms:2} ms (compute {row.prompt_compute_ms:2}, {row.prompt_bytes:1K} KiB in "
        .. "{row.prompt_transfer_ms:2})",
      holds = "row.ttft_ms / row.prompt_floor_ms <= 1.15",
      unless = "computing and reading one after the other would take {row.prompt_compute_ms + "
        .. "row.prompt_transfer_ms:2} ms, {(row.prompt_compute_ms + row.prompt_transfer_ms) / row.prompt_floor_ms:2} "
        .. "times the floor" } },
  { each = "pairs", -- the share whose prompts read least of those with the upper end of their loss within 1 %
    { "Fate", "prompts at 50 MB/s, INT{low_bits} for unpopular experts of INT{bits}: at least 10 % fewer bytes and "
      .. "less time, upper end of the loss at most 1 %",
      of = { without = "prefill-{widths}-times/none:rows[cache 25 50]",
        shares = { over = "prefill-{widths}/*", where = "file:find('^unpopular')",
          at = { row = "prefill-{widths}-times/{file}:rows[cache 25 50]" } } },
      let = { best = "top(shares, 'loss_high <= 0.01 and -prompt_bytes or -1e18')",
        mildest = "top(shares, '-loss_high')" },
      says = { "best.loss_high > 0.01", "no share of them has the upper end of its loss within 1 %",
        "{best.setting}: {best.prompt_bytes:1K} instead of {without.prompt_bytes:1K} KiB ({-less(best.prompt_bytes, "
          .. "without.prompt_bytes):+0%} %), {best.ttft_ms:1} instead of {without.ttft_ms:1} ms "
          .. "({-less(best.ttft_ms, without.ttft_ms):+0%} %) at a loss of {interval(best)} %" },
      holds = "without and best.loss_high <= 0.01 and less(best.prompt_bytes, without.prompt_bytes) >= 0.1 and "
        .. "best.ttft_ms < without.ttft_ms",
      unless = { "best.loss_high > 0.01", "{mildest.setting} loses {interval(mildest)} %",
        "the floor of its prompt is {best.prompt_floor_ms:1} ms, without {without.prompt_floor_ms:1} ms" } } },
  { each = "blocks",
    { "HOBBIT", "prompts, {bits} to {low_bits} bits, half of the memory: by blocks at least 10 % fewer bytes than "
      .. "without decisions",
      of = { without = "blocks-{widths}-times/none:rows[cache 50 550]",
        tokens = "blocks-{widths}-times/tokens:rows[cache 50 550]",
        blocks = "blocks-{widths}-times/blocks:rows[cache 50 550]", point = "blocks-{widths}/blocks:",
        none = "blocks-{widths}-times/none:" },
      says = "{less(blocks.prompt_bytes, without.prompt_bytes):0%} % fewer: {blocks.prompt_bytes:0K} of "
        .. "{without.prompt_bytes:0K} KiB for {none.prompt_tokens} tokens, at a loss of {interval(point)} % of the "
        .. "prompts' own tokens",
      holds = "point.loss == point.loss and less(blocks.prompt_bytes, without.prompt_bytes) >= 0.1",
      unless = "tokens that decide each for themselves read {-less(tokens.prompt_bytes, without.prompt_bytes):+0%} "
        .. "%" } },
  { "combinations", -- one technique each, pairs, and all
    "cache-prior, HOBBIT, Fate's prefill, max-rank, their pairs and all: each with a certificate and a held-out loss "
      .. "within their joint 90 % interval",
    of = { tunings = { over = "tunings", where = "test.loss == test.loss and file:find('^with%-')" } },
    says = "{#tunings} of 8 have a certificate, of which {count(tunings, 'holds')} hold",
    holds = "#tunings == 8 and count(tunings, 'holds') == 8",
    unless = "{list(tunings, 'not holds', '{setting}: promised {interval(proven)} %, held out {interval(test)} %')}" },
  { "certificates", "20 tunings: held-out loss minus certificate within their joint 90 % interval in at least 15",
    of = { tunings = { over = "tunings", where = "test.loss == test.loss and file:find('^seed%-')" } },
    says = "in {count(tunings, 'holds')} of {#tunings}; the held-out loss itself is within the target in "
      .. "{count(tunings, 'test.loss <= proven.target')}",
    holds = "#tunings < 20 and 'too few' or count(tunings, 'holds') * 20 >= 15 * #tunings" },
}

-- ---- the page ----

local entries = {
  require("decisions_tasks").TABLE,
  { "Settings with a certificate",
    "What moec tune proved on one part of the calibration text, and what the same bundle and settings lose on the "
      .. "test text, which nothing had seen. Misses and bytes are the certificate's, with the settings and without.",
    name = "tunings", records = { over = "tunings" },
    columns = { "tuning: {file}", "settings found: {setting}", "certificate, %: {proven.loss:2%}",
      "its interval, %: {range(proven)}", "on the test text, %: {test.loss:2%}", "its interval, %: {range(test)}",
      "within both intervals: {test.loss and holds and 'yes' or 'no'}",
      "misses, %: {proven.experts_missed / proven.experts_taken:1%}",
      "without, %: {proven.without.experts_missed / proven.without.experts_taken:1%}",
      "KiB a token: {proven.missed_bytes_per_token:1K}", "without: {proven.without.missed_bytes_per_token:1K}" } },
  { "Decoding on slow storage", "Bundles of the same certified loss in the same memory, LRU, each with the preloads "
    .. "that are fastest for it: all of the loss spent on bits, or half of it left to a route. Precisions start from "
    .. "experts of 4 bits with copies of 2.",
    name = "decoding",
    records = { at = { all = timed() }, where = "#all > 0", let = { best = "top(all, '-tpot_ms_median')" },
      over = joins.cross { "rate", { 550, 50 }, "share", { 25, 50 }, "side", { "static", "route", "precision",
        "route,precision" } } },
    columns = { "storage, MB/s: {rate}", "memory, % of the experts: {share}",
      "decisions: {side == 'static' and 'none, bits alone' or side}", "preloads: {best.predictor}",
      "ms a token: {best.tpot_ms_median:3}", "hits, %: {best.hit_rate:1%}",
      "KiB a token: {best.bytes_per_token:1K}" } },
}

-- Every folder in the experiment's that has a model.json, in the order of their names.
local function read(folder)
  local samples = {}
  for _, name in ipairs(moec.names(folder)) do
    if name:find("^[^.]") and moec.json(folder .. "/" .. name .. "/model.json") then
      local sample = measures.read(folder, name)
      sample.title = template.fill("{name}: {family}, {top_k} of {n_expert} experts a token in {n_layer} layers",
        template.scope(sample))
      table.insert(samples, sample)
    end
  end
  if #samples == 0 then error("'" .. folder .. "' has no results of experiments/decisions.sh", 0) end
  return samples
end

return {
  title = "Decisions per token, measured", read = read, goals = goals, entries = entries,
  papers = { (require "cache_prior"), (require "hobbit"), (require "fate") },
  introduction = {
    "Cache-conditional experts (Skliar et al., arXiv:2412.00099), HOBBIT (Tang et al., arXiv:2411.01433) and Fate "
      .. "(Fang et al., arXiv:2502.12224) on small models, with moec alone: losses of perplexity on text that nothing "
      .. "was tuned on, with 90 % intervals, and what misses a logical cache of each layer, LRU, empty at the "
      .. "beginning of each window. The papers' figures are of models of 14 to 47 billion parameters." },
}
