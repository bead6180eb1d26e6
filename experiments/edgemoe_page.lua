-- The report of EdgeMoE's experiment: claims that were not measured are shown as such.
local claims = require "claims"
local edgemoe = require "edgemoe"
local joins = require "joins"
local measures = require "edgemoe_measures"
local page = require "page"
local template = require "template"

local TITLES = {
  switch = "The Switch sample: encoder-decoder, one expert a token, summaries of dialogues",
  decoder = "The decoder sample: OLMoE, four experts a token, perplexity",
}

local SIZE = { "storage, MB", "{bundle.bundle_bytes * 1e-6:3}" }
local LOSS = { "loss, %", "{test.loss:2%}" }
local VALUE = { "{metric_name}", "{test.value:4}" }

-- ---- records ----

-- Compiled models and their tests by the files of rows.
local function bundles(rows)
  return { over = rows, may = { bundle = "{file}:", test = "{file}-test:" } }
end

-- The original: it loses nothing and has the value that a test is beside.
local function original(rows, compared)
  return { over = rows, may = { ours = "ours-2:", compared = compared .. ":" },
    let = { bundle = "{ bundle_bytes = ours.source_bytes }", test = "{ loss = 0, value = compared.reference }" } }
end

-- Assignments for targets with their certificates and times, or uniform ones.
local function assignments(file, bench, numbers, before, after)
  return { over = joins.cross { "n", numbers }, at = { bundle = file .. "-{n}:" }, with = { before = before },
    may = { test = file .. "-{n}-test:", ms = bench and bench .. "-{n}:rows[1].tpot_ms_median" },
    let = { certified = bench and "bundle" or "{}",
      after = "'" .. after .. "' .. (bundle.missed == true and ' (certificate missed)' or '')" } }
end

-- Each mode at each memory that rows name.
local function latencies(sample)
  local memories, is_known = {}, {}
  for _, row in ipairs(sample.results:at("bench:rows") or {}) do
    if row.memory and not is_known[row.memory] then table.insert(memories, row.memory) end
    is_known[row.memory or ""] = true
  end
  return joins.cross { "mode", { "io-free", "io-exp", "io-qexp", "io-exp+lru", "sti", "io-qexp+lru", "edgemoe" },
    "memory", memories }
end

-- ---- entries ----

-- The paper's figures are storage, loss and ROUGE-2 of ST-base-8 and of ST-base-16.
local ORIGINALS = {
  { name = "IO-FREE", paper = { "2.43", "0.00", "0.221", "4.12", "0.00", "0.245" } },
  { name = "IO-EXP", paper = { "2.53", "0.00", "0.221", "4.12", "0.00", "0.245" } },
}
local TABLE_2 = {
  { name = "IO-QEXP", file = "uniform-4", paper = { "0.85", "2.04", "0.215", "1.03", "3.15", "0.237" } },
  { name = "STI", file = "all-4", paper = { "0.85", "20.0", "0.176", "1.03", "25.1", "0.183" } },
  { name = "Our", file = "ours-2", paper = { "0.81", "0.89", "0.219", "0.95", "1.95", "0.240" } },
  { name = "Our, dense weights searched too", file = "ours-dense", paper = { "–", "–", "–", "–", "–", "–" } },
  { name = "the paper's procedure", file = "paper-2", paper = { "0.81", "0.89", "0.219", "0.95", "1.95", "0.240" } },
}

local TABLE_4 = {
  { name = "data like the test's", file = "table-like" }, { name = "other data", file = "table-other" },
  { name = "data like the test's, the paper's procedure", file = "table-paper-like" },
  { name = "other data, the paper's procedure", file = "table-paper-other" },
}

-- The paper's, of its summarisers and of its only decoder.
local TABLE_4_GIVEN = {
  [false] = { { "the paper's: IO-FREE", "ST-base-8 0.221, ST-base-16 0.245", "–", "–" },
    { "the paper's: Xsum", "ST-base-8 0.220, ST-base-16 0.243", "–", "–" },
    { "the paper's: SAMsum", "ST-base-8 0.219, ST-base-16 0.240", "–", "–" } },
  [true] = { { "the paper's: IO-FREE", "Winogrande 66.0, HellaSwag 75.1, MMLU 50.2, PiQA 77.3", "–", "–" },
    { "the paper's: refinedweb", "Winogrande 65.8, HellaSwag 74.8, MMLU 49.1, PiQA 77.2", "–", "–" },
    { "the paper's: c4", "Winogrande 64.8, HellaSwag 74.3, MMLU 48.9, PiQA 77.1", "–", "–" } },
}

local BUFFER = "memory == memory and memory or 'none'"

local function modes(name, file, rate)
  return { "Run modes on storage of " .. rate .. " MB/s, 80 us", name = name,
    records = { { over = file .. ":rows", with = { whose = "" }, let = { buffer = BUFFER } },
      { over = file .. "-paper:rows", with = { whose = ", the paper's procedure" }, let = { buffer = BUFFER } } },
    columns = { { "mode", "{mode}{whose}" }, { "buffer", "{buffer}" },
      { "preloads", "{predict ~= 'none' and 'yes' or 'no'}" }, page.TOKEN, { "floor, ms", "{floor_ms:3}" },
      { "stall, ms", "{stall_ms:3}" }, page.HITS, { "KB read a token", "{bytes_per_token * 1e-3:1}" },
      { "peak, MB", "{peak_memory_bytes * 1e-6:1}" } } }
end

local function evictions(name, file, whose)
  return { kind = "lines", name = name, title = "Hits by eviction policy and buffer, without preloads" .. whose,
    source = "EdgeMoE, Fig. 14", x = { "experts", "experts that the buffer holds", "buffer_share * n_total" },
    y = { "hits_percent", "experts found in the buffer, %", "100 * hit_rate", has_zero = true },
    records = file .. ":rows", by = "{evict}",
    of = { ten = { over = file .. ":rows", where = "math.abs(buffer_share * n_total - 10) < 0.5" } },
    caption = "Decoded tokens, counted by moec simulate on the calibration data or by moec bench on the test data. "
      .. "With ten experts '{top(ten, 'hit_rate').evict}' hits most: {top(ten, 'hit_rate').hit_rate:1%} %." }
end

-- Fig. 17: what targets take, ours and by the paper's procedure; then other records.
local function by_targets(name, title, y, path, others, caption)
  return { kind = "lines", name = name, title = title, source = "EdgeMoE, Fig. 17",
    x = { "target", "loss allowed", "target .. ' %'" }, y = y, by = "{whose}", caption = caption,
    records = { { over = joins.cross { "whose", { "ours", "the paper's procedure" }, "target", { 2, 5, 10, 20 } },
        at = { value = path }, may = { loss = "ours-{target}-test:loss" } },
      others } }
end

local ENTRIES = {
  { "Table II: storage and loss",
    "IO-FREE and IO-EXP are the original weights; IO-QEXP has every expert at INT4, STI all weights. Ours is moec's "
      .. "own search (policy hull, with a fit to the data) for a loss of at most 2 %; the paper's procedure is moec "
      .. "compile --preset paper for the same loss.",
    name = "table2", records = { original(ORIGINALS, "ours-2-test"), bundles(TABLE_2) },
    columns = { { "baseline", "{name}" }, SIZE, LOSS, VALUE, { "ST-base-8: GB", "{paper[1]}" },
      { "ST-base-8: loss, %", "{paper[2]}" }, { "ST-base-8: ROUGE-2", "{paper[3]}" },
      { "ST-base-16: GB", "{paper[4]}" }, { "ST-base-16: loss, %", "{paper[5]}" },
      { "ST-base-16: ROUGE-2", "{paper[6]}" } } },
  { "Table III: experts that fit into limits of memory", name = "table3",
    records = { measures.limits("limits", "ours"), measures.limits("limits-paper", "the paper's procedure") },
    columns = { { "memory limit, MB", "{memory_bytes * 1e-6:2}" }, { "assignment", "{whose}" },
      { "expert buffer, MB", "{expert_buffer_bytes * 1e-6:2}" }, { "experts in it", "{experts:1}" } } },
  { "Table IV: calibrated on one kind of data, tested on another", name = "table4",
    records = { original({ { name = "nothing (IO-FREE)" } }, "table-like-test"), bundles(TABLE_4) },
    given = function(sample) return TABLE_4_GIVEN[sample.is_decoder] end,
    columns = { { "calibrated on", "{name}" }, VALUE, LOSS, SIZE } },
  { "Assignments: what they take and lose", name = "targets",
    records = { assignments("ours", "bench", { 2, 5, 10, 20 }, "ours, at most ", " %"),
      assignments("paper", "bench-paper", { 2, 5, 10, 20 }, "the paper's procedure, at most ", " %"),
      assignments("uniform", nil, measures.BITS, "experts INT", ""),
      assignments("all", nil, measures.BITS, "all weights INT", "") },
    columns = { { "assignment", "{before}{n}{after}" }, SIZE, { "loss on the test data, %", "{test.loss:2%}" },
      { "its interval, %", "{test.loss_low:2%} to {test.loss_high:2%}" }, { "certificate, %", "{certified.loss:2%}" },
      { "ms a token", "{ms:3}" }, { "search, s", "{certified.seconds:0}" } } },
  modes("modes", "bench", 550), modes("modes_slow", "bench-slow", 50),
  { charts = { "paths" }, records = "profile.h5:" },
  { kind = "bars", name = "bits", title = "Experts alone or all weights at few bits, on the test data",
    source = "EdgeMoE, Fig. 6", x = { "bits", "bitwidth", "'INT' .. bits" },
    y = { "value", "{metric_name}", "test.value", has_zero = true }, labels = true,
    records = { over = joins.cross { "what", { "experts", "all weights" }, "bits", measures.BITS },
      at = { int4 = "uniform-4-test:" }, may = { test = "{what == 'experts' and 'uniform' or 'all'}-{bits}-test:" } },
    by = "{what}", rules = { { "records[1].int4.reference", "original" } },
    caption = "The original has {('%.4g'):format(records[1].int4.reference)}. {list(records, \"what == 'experts'\", "
      .. "'Experts at INT{bits} lose {test.loss:2%} %.', ' ')} Dense weights are not offered at INT2 and INT3." },
  { charts = { "dense_loss" }, records = "profile.h5:" }, { charts = { "sensitivity_int2" }, records = "profile.h5:" },
  { kind = "bars", name = "decoding", title = "Time of one expert on one token, decoding included, by quantiser",
    source = "EdgeMoE, Fig. 7(b)", x = { "quantizer", "quantiser, INT4", "name" }, labels = true,
    y = { "us", "microseconds", "expert.compute_ns * 1e-3", has_zero = true },
    records = { { over = measures.QUANTIZERS, at = { expert = measures.INT4_EXPERT } },
      { over = { { name = "16 bits" } }, at = { expert = "quantizer-linear-device:compute.experts[bits=16]" } } },
    caption = "Weights are decoded in registers while they are multiplied, so that decoding has no time of its own; "
      .. "16 bits need none.{list(records, \"expert.bits == 4 and name ~= 'linear'\", ' Linear is {expert.compute_ns "
      .. "/ records[1].expert.compute_ns:2} times as fast as {name}.', '')}" },
  { charts = { "conditional" }, records = "profile.h5:" },
  { kind = "lines", name = "latency",
    title = "Time per token by run mode and expert buffer, storage of 550 MB/s, 80 us",
    source = "EdgeMoE, Fig. 11, 16", by = "{mode}",
    records = { over = latencies, at = { row = "bench:rows[{mode} {memory}]" } },
    x = { "buffer", "expert buffer, share of the experts of the compiled assignment", "memory" },
    y = { "ms", "time per token (median), ms", "tpot_ms_median", has_zero = true },
    caption = "The smallest buffer holds ten experts, as the paper's. Modes without a buffer are level lines; the "
      .. "same bytes hold fewer experts where these have more bits." },
  evictions("evictions", "evictions-ours", ""),
  evictions("paper_evictions", "evictions-paper", ", the paper's procedure's bundle"),
  by_targets("storage", "Storage by the loss allowed", { "megabytes", "bundle, MB", "value / 1e6", has_zero = true },
    "{whose == 'ours' and whose or 'paper'}-{target}:bundle_bytes", {
      over = measures.TARGETS, at = { ours = "ours-2:" },
      with = {
        whose = "best uniform bitwidth that meets it",
        value = function(record, sample)
          local best = measures.best_uniform(sample, record)
          return best and best.bundle.bundle_bytes
        end,
      },
    }, "{list(records, \"whose == 'ours'\", 'Asked for {target} %: {loss:2%} % on the test data.', ' ')}"),
  by_targets("target_times", "Time per token by the loss allowed, buffer of ten experts", { "ms",
    "time per token (median), ms", "value", has_zero = true }, "bench{whose == 'ours' and '' or "
      .. "'-paper'}-{target}:rows[1].tpot_ms_median", { over = {} },
    "Mode edgemoe on storage of 550 MB/s, 80 us."),
}

-- ---- the page ----

local function put_introduction(self, samples)
  self:paragraph("Section IV of EdgeMoE (Yi et al., IEEE Transactions on Mobile Computing, 2025) measured on two "
    .. "small models that this project trained, with moec alone: the paper's rows, its numbers beside ours. Losses "
    .. "are of data that no search saw; storage is emulated at 550 MB/s and 80 us a read; the expert buffer holds ten "
    .. "experts where nothing else is said.")
  local first = samples[1].results:load("bench") or samples[2].results:load("bench") or {}
  self:paragraph(template.fill("Times are of this machine: {device.processor}, {threads} threads. The paper's are of "
    .. "a Jetson TX2 (GPU) and a Raspberry Pi 4B.", template.scope(first)))
  for _, sample in ipairs(samples) do self:score(sample, TITLES[sample.name]) end
end

local function put_sample(self, sample)
  local findings = claims.judge(edgemoe.findings, sample)
  self:begin(sample, TITLES[sample.name])
  if sample.name == "switch" then
    self:paragraph("This sample was trained in two phases. Before the second, whose weight decay of 1.0 removes what "
      .. "is left of the random initialisation, experts at INT2 lost less than 1 % of ROUGE-2.")
  end
  self:agreement(findings)
  self:claims("goals", "Figures to reach", sample.goals)
  self:claims("findings", "What the paper shows, and what is seen here", findings)
  self:add(ENTRIES)
  self:put("</section>\n")
end

return function(folder)
  local self, samples = page.open(folder), {}
  for s, name in ipairs { "switch", "decoder" } do
    samples[s] = measures.read(folder, name)
    samples[s].goals = claims.judge(edgemoe.goals, samples[s])
  end
  put_introduction(self, samples)
  for _, sample in ipairs(samples) do put_sample(self, sample) end
  self:close("EdgeMoE's experiment, repeated")
end
