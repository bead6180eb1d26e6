-- Decisions per token: the figures that this project set itself to reach. claims.lua tells what a claim is.
local measures = require "decisions_measures"
local template = require "template"

-- The prior with the fewest misses whose loss is at most 1 % with the upper end of its interval, too.
local function prior(paper, size, share, holds)
  local priors = "method == 'cache-prior' and slots == " .. size
  return { "cache-prior", paper,
    of = { plain = "routes/top-k-{" .. size .. "}:", priors = { over = "routes", where = priors },
      milder = { over = "routes", at = { plain = "routes/top-k-{" .. size .. "}:" },
        where = priors .. " and experts_missed <= " .. share .. " * plain.experts_missed" } },
    let = { best = "top(priors, 'loss_high <= 0.01 and -experts_missed or -1e18')",
      mildest = "top(milder, '-loss_high')" },
    says = function(values)
      return values.best.loss_high > 0.01 and "no setting has the upper end of its loss within 1 %"
        or "{best.setting}, keeping {best.keep_top}: {plain.miss_rate:1%} to {best.miss_rate:1%} % ({1 - "
          .. "best.miss_rate / plain.miss_rate:0%} % fewer) at a loss of {interval(best)} %; Belady "
          .. "{plain.belady_rate:1%} %"
    end,
    holds = "plain and best.loss_high <= 0.01 and best.miss_rate <= " .. share .. " * plain.miss_rate" .. holds,
    unless = function(values)
      return values.best.loss_high <= 0.01 and template.is_there(values.milder) and "{mildest.setting}, keeping "
        .. "{mildest.keep_top}, misses {mildest.miss_rate:1%} % and loses {interval(mildest)} % on {mildest.samples} "
        .. "windows"
    end }
end

-- 4-bit experts with low copies of 2 bits, by HOBBIT's own scores.
local function fewer_bytes(size, words)
  return { "HOBBIT", "4 to 2 bits, " .. words .. ": at least 1.2 times fewer bytes than static INT4, equal buffer",
    of = { still = "pair-4-2/equal-{" .. size .. "}:", hobbit = "pair-4-2/hobbit-0.6-0.9-{" .. size .. "}:" },
    says = "{still.missed_bytes_per_token / hobbit.missed_bytes_per_token:2} times: {hobbit.missed_bytes_per_token / "
      .. "1024:1} KiB a token ({hobbit.slots} slots, {hobbit.low_slots} low ones) against "
      .. "{still.missed_bytes_per_token / 1024:1} KiB ({still.slots} slots), at a loss of {interval(hobbit)} %",
    holds = "still.missed_bytes_per_token / hobbit.missed_bytes_per_token >= 1.2" }
end

local function side(name)
  return function(sample, decoding) return measures.side(sample, name, decoding) end
end

-- The faster of the tunings with a route.
local function tuned(sample, decoding)
  local route, both = side "route" (sample, decoding), side "route,precision" (sample, decoding)
  return both and route and both.tpot_ms_median < route.tpot_ms_median and both or route
end

local decoding = {
  "decoding",
  "{rate} MB/s, {share} % of the experts in memory: tuned decisions at least {least:2} times faster per token than "
    .. "bits alone at the same certified loss",
  of = { still = side "static", tuned = tuned },
  says = "{still.tpot_ms_median / tuned.tpot_ms_median:2} times: {tuned.side} {tuned.tpot_ms_median:3} ms (preloads: "
    .. "{tuned.predictor}) against {still.tpot_ms_median:3} ms ({still.predictor})",
  holds = "still.tpot_ms_median / tuned.tpot_ms_median >= least",
  unless = "it reads {tuned.bytes_per_token / 1024:1} KiB a token and finds {tuned.hit_rate:0%} % of its experts in "
    .. "the buffer, bits alone {still.bytes_per_token / 1024:1} KiB and {still.hit_rate:0%} %",
}

local hobbit_decoding = {
  "HOBBIT",
  "{rate} MB/s, {share} % of the experts in memory: HOBBIT alone faster than bits alone at the same certified loss",
  of = { still = side "static", hobbit = side "precision" },
  says = "{still.tpot_ms_median / hobbit.tpot_ms_median:2} times: {hobbit.tpot_ms_median:3} against "
    .. "{still.tpot_ms_median:3} ms",
  holds = "hobbit.tpot_ms_median < still.tpot_ms_median",
  unless = "it reads {hobbit.bytes_per_token / 1024:1} KiB a token, bits alone {still.bytes_per_token / 1024:1} KiB",
}

local floor = {
  "prompts",
  "a prompt of {none.prompt_tokens} tokens at INT{bits}, a quarter of the memory, 550 MB/s: within 15 % of "
    .. "max(compute, bytes / bandwidth)",
  of = { row = "prefill-{widths}-times/none:rows[cache 25 550]", none = "prefill-{widths}-times/none:" },
  says = "{row.ttft_ms / row.prompt_floor_ms:2} times the floor: {row.ttft_ms:2} ms against {row.prompt_floor_ms:2} "
    .. "ms (compute {row.prompt_compute_ms:2}, {row.prompt_bytes / 1024:1} KiB in {row.prompt_transfer_ms:2})",
  holds = "row.ttft_ms / row.prompt_floor_ms <= 1.15",
  unless = "computing and reading one after the other would take {row.prompt_compute_ms + row.prompt_transfer_ms:2} "
    .. "ms, {(row.prompt_compute_ms + row.prompt_transfer_ms) / row.prompt_floor_ms:2} times the floor",
}

-- The share of unpopular experts in the low copy whose prompts read least of those with the upper end of their loss
-- within 1 %.
local unpopular = {
  "Fate", "prompts at 50 MB/s, INT{low_bits} for unpopular experts of INT{bits}: at least 10 % fewer bytes and less "
    .. "time, upper end of the loss at most 1 %",
  of = { without = "prefill-{widths}-times/none:rows[cache 25 50]",
    shares = { over = "prefill-{widths}/*", where = "file:find('^unpopular')",
      at = { row = "prefill-{widths}-times/{file}:rows[cache 25 50]" } } },
  let = { best = "top(shares, 'loss_high <= 0.01 and -prompt_bytes or -1e18')", mildest = "top(shares, '-loss_high')" },
  says = function(values)
    return values.best.loss_high > 0.01 and "no share of them has the upper end of its loss within 1 %"
      or "{best.setting}: {best.prompt_bytes / 1024:1} instead of {without.prompt_bytes / 1024:1} KiB ({-(1 - "
        .. "best.prompt_bytes / without.prompt_bytes):+0%} %), {best.ttft_ms:1} instead of {without.ttft_ms:1} ms "
        .. "({-(1 - best.ttft_ms / without.ttft_ms):+0%} %) at a loss of {interval(best)} %"
  end,
  holds = "without and best.loss_high <= 0.01 and 1 - best.prompt_bytes / without.prompt_bytes >= 0.1 and best.ttft_ms "
    .. "< without.ttft_ms",
  unless = function(values)
    return values.best.loss_high > 0.01 and "{mildest.setting} loses {interval(mildest)} %"
      or "the floor of its prompt is {best.prompt_floor_ms:1} ms, without {without.prompt_floor_ms:1} ms"
  end,
}

local by_blocks = {
  "HOBBIT",
  "prompts, {bits} to {low_bits} bits, half of the memory: by blocks at least 10 % fewer bytes than without decisions",
  of = { without = "blocks-{widths}-times/none:rows[cache 50 550]",
    tokens = "blocks-{widths}-times/tokens:rows[cache 50 550]",
    blocks = "blocks-{widths}-times/blocks:rows[cache 50 550]", point = "blocks-{widths}/blocks:",
    none = "blocks-{widths}-times/none:" },
  says = "{1 - blocks.prompt_bytes / without.prompt_bytes:0%} % fewer: {blocks.prompt_bytes / 1024:0} of "
    .. "{without.prompt_bytes / 1024:0} KiB for {none.prompt_tokens} tokens, at a loss of {interval(point)} % of the "
    .. "prompts' own tokens",
  holds = "point.loss == point.loss and 1 - blocks.prompt_bytes / without.prompt_bytes >= 0.1",
  unless = "tokens that decide each for themselves read {-(1 - tokens.prompt_bytes / without.prompt_bytes):+0%} %",
}

local combinations = { -- one technique each, pairs, and all
  "combinations", "cache-prior, HOBBIT, Fate's prefill, max-rank, their pairs and all: each with a certificate and a "
    .. "held-out loss within their joint 90 % interval",
  of = { tunings = { over = "tunings", where = "test.loss == test.loss and name:find('^with%-')" } },
  says = "{#tunings} of 8 have a certificate, of which {count(tunings, 'holds')} hold",
  holds = "#tunings == 8 and count(tunings, 'holds') == 8",
  unless = "{list(tunings, 'not holds', '{setting}: promised {interval(proven)} %, held out {interval(test)} %')}",
}

local certificates = {
  "certificates", "20 tunings: held-out loss minus certificate within their joint 90 % interval in at least 15",
  of = { tunings = { over = "tunings", where = "test.loss == test.loss and name:find('^seed%-')" } },
  says = "in {count(tunings, 'holds')} of {#tunings}; the held-out loss itself is within the target in "
    .. "{count(tunings, 'test.loss <= proven.target')}",
  holds = "#tunings < 20 and 'too few' or count(tunings, 'holds') * 20 >= 15 * #tunings",
}

return {
  prior("half of the experts: misses at least halved and below Belady's, upper end of the loss at most 1 "
    .. "%", "half", 0.5, " and best.experts_missed < plain.belady_missed"),
  prior("a quarter of the experts: at least 40 % fewer misses, upper end of the loss at most 1 %", "quarter", 0.6, ""),
  fewer_bytes("half", "half of the experts"), fewer_bytes("quarter", "a quarter"),
  { each = measures.DECODINGS, decoding }, { each = measures.DECODINGS, hobbit_decoding }, { each = "pairs", floor },
  { each = "pairs", unpopular }, { each = "blocks", by_blocks }, combinations, certificates,
}
