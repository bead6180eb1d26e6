-- EdgeMoE (Yi et al., IEEE Transactions on Mobile Computing, 2025): figures to reach, what the paper says, and the
-- report of its experiment on two samples. claims.lua tells what a claim is, page.lua what an entry of the page is.
local joins = require "joins"
local page = require "page"
local results = require "results"

local BITS = { 2, 3, 4, 8 }
local TARGETS = joins.cross { "target", { 2, 5, 10, 20 } }

-- Uniform bundles whose loss on the test data meets a target.
local FITTING = { over = joins.cross { "bits", BITS }, where = "test.loss <= target / 100",
  at = { bundle = "uniform-{bits}:", test = "uniform-{bits}-test:" } }

-- One expert at INT4 by quantiser, and at 16 bits.
local QUANTIZERS = { over = joins.cross { "name", { "linear", "hqq", "outlier", "log" } },
  at = { expert = "quantizer-{name}-device:compute.experts[bits=4]" } }
local PLAIN = "quantizer-linear-device:compute.experts[bits=16]"

-- Rows of limited memory, with the experts that fit; one that does not fit has no limit to tell.
local function limits(file, whose)
  return { over = file .. ":rows", where = "mode == 'edgemoe' and expert_buffer_bytes > 0", with = { whose = whose },
    let = { experts = "expert_buffer_bytes / expert_total_bytes * n_total" } }
end

-- ---- claims ----

-- How much faster a token is than in another mode, with ten experts in the buffer; `storage` is "" or "-slow".
local function faster(figure, paper, storage, mode, least, says)
  local file = "bench" .. storage
  return { figure, paper, mode = mode, asked = least, says = "{times(ours, theirs):2} times" .. says,
    of = { ours = file .. ":rows[edgemoe first]", theirs = file .. ":rows[" .. mode .. " first]",
      procedure = file .. "-paper:rows[edgemoe first]" },
    holds = "times(ours, theirs) >= asked",
    unless = "computing alone takes {ours.compute_ms:3} ms of a token, so that no reading at all would give "
      .. "{theirs.tpot_ms_median / ours.compute_ms:2} times; edgemoe waits {ours.stall_ms:3} ms, finds "
      .. "{ours.hit_rate:0%} % of its experts in the buffer and reads {ours.bytes_per_token:1k} KB a token, {mode} "
      .. "{theirs.bytes_per_token:1k} KB{n_used > 10 and '; a token uses ' .. n_used .. ' experts, so that ten hold "
      .. "less than one token needs' or ''}" }
end

local function told(paper, storage, mode, least)
  return faster("Fig. 11", paper, storage, mode, least,
    "; its own procedure's bundle {times(procedure, theirs):2} times")
end

local REACHED = "buffer of ten experts, 550 MB/s: at least {asked} times faster per token than {mode}"
local AGAINST = ": {ours.tpot_ms_median:3} against {theirs.tpot_ms_median:3} ms"

local goals = {
  faster("Fig. 11", REACHED, "", "io-exp", 2.6, AGAINST), -- least of the paper on its board with a GPU is 2.64
  faster("Fig. 11", REACHED, "", "io-qexp", 1.2, AGAINST),
  { "Table II", "target 2 %: the bundle is smaller than uniform INT4",
    of = { ours = "ours-2:", int4 = "uniform-4:", test = "uniform-4-test:" },
    says = "{ours.bundle_bytes:3M} against {int4.bundle_bytes:3M} MB", holds = "ours.bundle_bytes < int4.bundle_bytes",
    unless = "uniform INT4 itself loses {test.loss:2%} % on the test data (interval {range(test)} %)" },
  { "Table II", "target 2 %: the loss on data that nothing was tuned on is within the target",
    of = { test = "ours-2-test:", ours = "ours-2:" },
    says = "{test.loss:2%} % (interval {range(test)} %) on {test.samples} samples", holds = "test.loss <= 0.02",
    unless = "the certificate, on calibration data that the search did not see, was {ours.loss:2%} % (at most "
      .. "{ours.loss_high:2%} %)" },
  { each = TARGETS,
    { "Fig. 17", "target {target} %: at most as large as the best uniform bitwidth that meets it",
      of = { ours = "ours-{target}:", test = "ours-{target}-test:", fitting = FITTING },
      let = { best = "top(fitting, '-bundle.bundle_bytes')" },
      says = "{ours.bundle_bytes:3M} against {best.bundle.bundle_bytes:3M} MB at INT{best.bits}; losses "
        .. "{test.loss:2%} and {best.test.loss:2%} %",
      holds = "test.loss and ours.bundle_bytes <= best.bundle.bundle_bytes",
      unless = "{metric ~= search_metric and 'the search keeps the target in ' .. search_metric .. ', the test is in "
        .. "' .. metric .. ': ' or ''}ours must meet the target with 95 % confidence on the search data (it lost "
        .. "{ours.loss:2%} %, upper bound {ours.loss_high:2%} %, on the certificate's), uniform INT{best.bits} only "
        .. "by its mean on the test data" } },
  { "Table I", "the whole offline stage, profile and compile, in under 10 minutes",
    of = { profiled = "profile:", compiled = "ours-2:", bench = "bench:" },
    says = "{profiled.seconds + compiled.seconds:0} s: profile {profiled.seconds:0} s ({profiled.cost_passes:1} passes "
      .. "where one evaluation each would be {profiled.naive_passes:0}), compile {compiled.seconds:0} s "
      .. "({compiled.evaluations} evaluations)",
    holds = "profiled.seconds + compiled.seconds < 600", unless = "measured with {bench.threads} threads" },
}

-- Losses of two neighbours of a layer where each alone has the fewest bits.
local function neighbours(sample)
  local list = {}
  for _, losses in ipairs(sample.profile and sample.profile.expert_losses or {}) do
    for e = 1, #losses - 1 do table.insert(list, { one = losses[e], other = losses[e + 1] }) end
  end
  return list
end

-- Hits of an eviction in the same buffer.
local function hits(evict) return "{file}:rows[evict=" .. evict .. " buffer_bytes={buffer_bytes}].hit_rate" end

local findings = {
  { "Fig. 4", "paths follow a power law: the 20 % most frequent take more than 99 % of the tokens",
    of = { routing = "profile:routing", profile = "profile.h5:" },
    holds = "profile.n_token > 0 and routing.share_of_top_20_percent_paths > 0.99",
    says = "the 20 % most frequent take {routing.share_of_top_20_percent_paths:1%} %, the ten most frequent "
      .. "{routing.share_of_top_10_paths:1%} % ({routing.paths} paths, {profile.n_token} tokens)",
    unless = "of {n_expert ^ n_decoder_layer:0} possible paths of {n_decoder_layer} layers {routing.paths} occur; "
      .. "the entropy of the experts' load is {routing.entropy:2} of 1" },
  { "Fig. 8", "the experts of two layers tell the next one in 87.1 % of the cases",
    of = { recall = "profile:routing.recall" }, holds = "recall.path_table.k >= 0.871",
    says = "the path table's first guesses are right in {recall.path_table.k:1%} % of the cases, frequency's in "
      .. "{recall.frequency.k:1%} %" },
  { "Fig. 6", "experts at INT4 lose 1.30 to 1.44 %, at INT2 5.82 % (SAMSum)",
    of = { int4 = "uniform-4-test:", int2 = "uniform-2-test:" },
    says = "experts at INT4 lose {int4.loss:2%} %, at INT2 {int2.loss:2%} %",
    holds = "math.max(int4.loss - 0.0144, int2.loss - 0.0582) <= 0" },
  { "Fig. 6", "quantising all weights costs more than the experts alone",
    of = { all = "all-4-test:", int4 = "uniform-4-test:" }, holds = "all.loss > int4.loss",
    says = "at INT4 all weights lose {all.loss:2%} %, experts alone {int4.loss:2%} %",
    unless = "the intervals are {range(all)} and {range(int4)} %" },
  { "Fig. 7a",
    "single experts at INT2 differ in what they cost: 0.44 and 0.59 %, so by 0.15 points, for two neighbours",
    of = { neighbours = neighbours, profile = "profile.h5:", profiled = "profile:" },
    let = { pair = "top(neighbours, 'math.abs(one - other)')" },
    says = "one expert at INT{profile.bits}, the others at INT{profiled.baseline_bits}: {pair.one:2%} and "
      .. "{pair.other:2%} % for the two neighbours that differ most",
    holds = "math.abs(pair.one - pair.other) >= 0.0015" },
  { "Fig. 7b", "linear quantisation decodes 1.1 to 2.5 times faster than others (Gaussian outlier-aware)",
    of = { linear = "quantizer-linear-device:compute.experts[bits=4]", plain = PLAIN,
      others = { over = QUANTIZERS, where = "name ~= 'linear'" } },
    let = { fastest = "least(others, 'expert.compute_ns') / linear.compute_ns",
      slowest = "most(others, 'expert.compute_ns') / linear.compute_ns" },
    says = "one expert at INT4 takes {linear.compute_ns:1k} us, by other quantisers {fastest:2} to {slowest:2} times "
      .. "that, at 16 bits {plain.compute_ns:1k} us",
    holds = "others[1] and fastest >= 1.1" },
  told("Jetson TX2, SSD of 550 MB/s: 2.64 to 3.03 times faster per token than IO-EXP", "", "io-exp", 2.64),
  told("Jetson TX2, HDD of 50 MB/s: 4.49 to 4.76 times faster per token than IO-EXP", "-slow", "io-exp", 4.49),
  told("both devices: 1.19 to 2.12 times faster per token than IO-QEXP (here at 550 MB/s)", "", "io-qexp", 1.19),
  told("both devices: 1.19 to 2.12 times faster per token than IO-QEXP (here at 50 MB/s)", "-slow", "io-qexp", 1.19),
  told("both devices: 1.22 to 2.77 times faster per token than STI (here at 550 MB/s)", "", "sti", 1.22),
  told("both devices: 1.22 to 2.77 times faster per token than STI (here at 50 MB/s)", "-slow", "sti", 1.22),
  { each = "decoders", -- as the paper's model on a phone
    { "Fig. 15", "MiniCPM-MoE on a phone takes 63 % less memory than IO-FREE",
      of = { ours = "bench:rows[edgemoe first]", all = "bench:rows[io-free first]" },
      says = "{less(ours.peak_memory_bytes, all.peak_memory_bytes):0%} % less with a buffer of ten experts: "
        .. "{ours.peak_memory_bytes:1M} instead of {all.peak_memory_bytes:1M} MB",
      holds = "less(ours.peak_memory_bytes, all.peak_memory_bytes) >= 0.63",
      unless = "the buffer itself is {ours.expert_buffer_bytes:1M} MB" },
    faster("Fig. 15", "MiniCPM-MoE on a phone is 25 % faster than IO-QEXP", "", "io-qexp", 1.25,
      ", on storage of 550 MB/s") },
  { "Table II", "ours is the smallest: 0.81 GB, IO-QEXP and STI 0.85 GB, IO-FREE 2.43 GB",
    of = { ours = "ours-2:", dense = "ours-dense:", paper = "paper-2:", int4 = "uniform-4:", sti = "all-4:" },
    says = "ours {ours.bundle_bytes:2M} MB, with its dense weights searched too {dense.bundle_bytes:2M} MB, the "
      .. "paper's procedure {paper.bundle_bytes:2M}, IO-QEXP {int4.bundle_bytes:2M}, STI {sti.bundle_bytes:2M}, "
      .. "IO-FREE {ours.source_bytes:2M} MB",
    holds = "ours.bundle_bytes < math.min(int4.bundle_bytes, sti.bundle_bytes)",
    unless = { "ours.bundle_bytes >= sti.bundle_bytes", "dense weights at INT4, which ours has at 16 bits, spare STI "
      .. "{int4.bundle_bytes - sti.bundle_bytes:2M} MB" } },
  { "Table II", "ours loses least of the quantised: 0.89 %, IO-QEXP 2.04 %, STI 20.0 %",
    of = { ours = "ours-2:", int4 = "uniform-4:", test = "ours-2-test:", paper_test = "paper-2-test:",
      int4_test = "uniform-4-test:", sti_test = "all-4-test:" },
    says = "ours {test.loss:2%} %, the paper's procedure {paper_test.loss:2%} %, IO-QEXP {int4_test.loss:2%} %, STI "
      .. "{sti_test.loss:2%} %",
    holds = "test.loss <= math.min(int4_test.loss, sti_test.loss)",
    unless = "the intervals are {range(test)}, {range(int4_test)} and {range(sti_test)} %; ours is "
      .. "{int4.bundle_bytes - ours.bundle_bytes:2M} MB smaller than IO-QEXP" },
  { each = { { file = "evictions-ours", whose = "" },
      { file = "evictions-paper", whose = " (its procedure's bundle)" } },
    { "Fig. 14", "at every size of the buffer its eviction hits more than FIFO, LRU, LFU and random{whose}",
      of = { sizes = { over = "{file}:rows", where = "evict == 'edgemoe' and buffer_share < 1",
        at = { fifo = hits "fifo", lru = hits "lru", lfu = hits "lfu", random = hits "random", usual = hits "hobbit" },
        let = { best = "math.max(fifo, lru, lfu, random)", n_held = "buffer_share * n_total",
          other = "({ [random] = 'random', [lfu] = 'lfu', [lru] = 'lru', [fifo] = 'fifo' })[math.max(fifo, lru, lfu, "
            .. "random)]" } } },
      let = { n_more = "count(sizes, 'hit_rate > best')" },
      says = "at {n_more} of {#sizes} sizes; moec's default, hobbit, hits at least as much as all of them at "
        .. "{count(sizes, 'usual >= hit_rate and usual >= best')}",
      holds = "n_more == #sizes",
      unless = "{list(sizes, 'hit_rate <= best', '{n_held:0} experts: {hit_rate:1%} %, {other} {best:1%} %, hobbit "
        .. "{usual:1%} %')}" } },
  { "Fig. 17", "storage and latency fall as more loss is allowed",
    of = { steps = { over = TARGETS, is_steps = true,
        at = { bytes = "ours-{target}:bundle_bytes", ms = "bench-{target}:rows[1].tpot_ms_median" } },
      first = "paper-2:bundle_bytes", last = "paper-20:bundle_bytes" },
    let = { n_rise = "count(steps, 'to.bytes > from.bytes or to.ms > from.ms')" },
    says = "from 2 to 20 %: {steps[1].from.bytes:2M} to {steps[3].to.bytes:2M} MB, {steps[1].from.ms:3} to "
      .. "{steps[3].to.ms:3} ms a token; by the paper's procedure {first:2M} to {last:2M} MB",
    holds = "steps[3].to.target == 20 and n_rise == 0 and steps[3].to.bytes < steps[1].from.bytes and "
      .. "steps[3].to.ms < steps[1].from.ms",
    unless = "{list(steps, 'to.bytes > from.bytes or to.ms > from.ms', 'from {from.target} to {to.target} %: "
      .. "{from.bytes:2M} to {to.bytes:2M} MB, {from.ms:3} to {to.ms:3} ms')}" },
  { "Table III", "the experts that can be cached grow linearly with the memory limit (correlation at least 0.99)",
    of = { limits = limits("limits", "ours") }, let = { linear = "correlation(limits, 'memory_bytes', 'experts')" },
    says = "{limits[1].experts:0} experts in {limits[1].memory_bytes:1M} MB to {limits[#limits].experts:0} in "
      .. "{limits[#limits].memory_bytes:1M} MB, correlation {linear:4}",
    holds = "limits[3].memory_bytes > 0 and linear >= 0.99" },
  { "Table IV", "calibrated on one data set and tested on another, the loss is about 2 % on average",
    of = { like = "table-like-test:", other = "table-other-test:", paper_like = "table-paper-like-test:",
      paper_other = "table-paper-other-test:" },
    says = "calibrated on data like the test's {like.value:4} (loss {like.loss:2%} %), on other data {other.value:4} "
      .. "({other.loss:2%} %), original {like.reference:4}; by the paper's procedure the losses are "
      .. "{paper_like.loss:2%} and {paper_other.loss:2%} %",
    holds = "like.value and other.loss <= 0.02" },
}

-- ---- the page ----

local SIZE, LOSS = "storage, MB: {bundle.bundle_bytes:3M}", "loss, %: {test.loss:2%}"
local VALUE = "{metric_name}: {test.value:4}"

-- Compiled models and their tests by the files of rows.
local function bundles(rows) return { over = rows, may = { bundle = "{file}:", test = "{file}-test:" } } end

-- The original: it loses nothing and has the value that a test is beside.
local function original(rows, compared)
  return { over = rows, may = { ours = "ours-2:", compared = compared .. ":" },
    let = { bundle = "{ bundle_bytes = ours.source_bytes }", test = "{ loss = 0, value = compared.reference }" } }
end

-- The paper's, of its summarisers and of its only decoder.
local function given_in_table_4(sample)
  return #sample.decoders == 0
    and { { "the paper's: IO-FREE", "ST-base-8 0.221, ST-base-16 0.245", "–", "–" },
      { "the paper's: Xsum", "ST-base-8 0.220, ST-base-16 0.243", "–", "–" },
      { "the paper's: SAMsum", "ST-base-8 0.219, ST-base-16 0.240", "–", "–" } }
    or { { "the paper's: IO-FREE", "Winogrande 66.0, HellaSwag 75.1, MMLU 50.2, PiQA 77.3", "–", "–" },
      { "the paper's: refinedweb", "Winogrande 65.8, HellaSwag 74.8, MMLU 49.1, PiQA 77.2", "–", "–" },
      { "the paper's: c4", "Winogrande 64.8, HellaSwag 74.3, MMLU 48.9, PiQA 77.1", "–", "–" } }
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

-- Fig. 17: what targets take, ours and by the paper's procedure, at a path of each.
local function by_targets(path)
  return { over = joins.cross { "whose", { "ours", "the paper's procedure" }, "target", { 2, 5, 10, 20 } },
    at = { value = path }, may = { loss = "ours-{target}-test:loss" } }
end

local entries = {
  { "Table II: storage and loss",
    "IO-FREE and IO-EXP are the original weights; IO-QEXP has every expert at INT4, STI all weights. Ours is moec's "
      .. "own search (policy hull, with a fit to the data) for a loss of at most 2 %; the paper's procedure is moec "
      .. "compile --preset paper for the same loss.",
    name = "table2",
    records = { -- the paper's figures are storage, loss and ROUGE-2 of ST-base-8 and of ST-base-16
      original({ { name = "IO-FREE", paper = { "2.43", "0.00", "0.221", "4.12", "0.00", "0.245" } },
        { name = "IO-EXP", paper = { "2.53", "0.00", "0.221", "4.12", "0.00", "0.245" } } }, "ours-2-test"),
      bundles {
        { name = "IO-QEXP", file = "uniform-4", paper = { "0.85", "2.04", "0.215", "1.03", "3.15", "0.237" } },
        { name = "STI", file = "all-4", paper = { "0.85", "20.0", "0.176", "1.03", "25.1", "0.183" } },
        { name = "Our", file = "ours-2", paper = { "0.81", "0.89", "0.219", "0.95", "1.95", "0.240" } },
        { name = "Our, dense weights searched too", file = "ours-dense", paper = { "–", "–", "–", "–", "–", "–" } },
        { name = "the paper's procedure", file = "paper-2",
          paper = { "0.81", "0.89", "0.219", "0.95", "1.95", "0.240" } } } },
    columns = { "baseline: {name}", SIZE, LOSS, VALUE, "ST-base-8: GB: {paper[1]}", "ST-base-8: loss, %: {paper[2]}",
      "ST-base-8: ROUGE-2: {paper[3]}", "ST-base-16: GB: {paper[4]}", "ST-base-16: loss, %: {paper[5]}",
      "ST-base-16: ROUGE-2: {paper[6]}" } },
  { "Table III: experts that fit into limits of memory", name = "table3",
    records = { limits("limits", "ours"), limits("limits-paper", "the paper's procedure") },
    columns = { "memory limit, MB: {memory_bytes:2M}", "assignment: {whose}",
      "expert buffer, MB: {expert_buffer_bytes:2M}", "experts in it: {experts:1}" } },
  { "Table IV: calibrated on one kind of data, tested on another", name = "table4",
    records = { original({ { name = "nothing (IO-FREE)" } }, "table-like-test"),
      bundles { { name = "data like the test's", file = "table-like" }, { name = "other data", file = "table-other" },
        { name = "data like the test's, the paper's procedure", file = "table-paper-like" },
        { name = "other data, the paper's procedure", file = "table-paper-other" } } },
    given = given_in_table_4, columns = { "calibrated on: {name}", VALUE, LOSS, SIZE } },
  { "Assignments: what they take and lose", name = "targets",
    records = { assignments("ours", "bench", { 2, 5, 10, 20 }, "ours, at most ", " %"),
      assignments("paper", "bench-paper", { 2, 5, 10, 20 }, "the paper's procedure, at most ", " %"),
      assignments("uniform", nil, BITS, "experts INT", ""), assignments("all", nil, BITS, "all weights INT", "") },
    columns = { "assignment: {before}{n}{after}", SIZE, "loss on the test data, %: {test.loss:2%}",
      "its interval, %: {range(test)}", "certificate, %: {certified.loss:2%}", "ms a token: {ms:3}",
      "search, s: {certified.seconds:0}" } },
  { each = { { name = "modes", file = "bench", rate = 550 }, { name = "modes_slow", file = "bench-slow", rate = 50 } },
    { "Run modes on storage of {rate} MB/s, 80 us", name = "{name}",
      records = { let = { buffer = "memory == memory and memory or 'none'" },
        over = { { over = "{file}:rows", with = { whose = "" } },
          { over = "{file}-paper:rows", with = { whose = ", the paper's procedure" } } } },
      columns = { "mode: {mode}{whose}", "buffer: {buffer}", "preloads: {predict ~= 'none' and 'yes' or 'no'}",
        page.TOKEN, "floor, ms: {floor_ms:3}", "stall, ms: {stall_ms:3}", page.HITS,
        "KB read a token: {bytes_per_token:1k}", "peak, MB: {peak_memory_bytes:1M}" } } },
  { charts = "paths", records = "profile.h5:" },
  { kind = "bars", name = "bits", title = "Experts alone or all weights at few bits, on the test data",
    source = "EdgeMoE, Fig. 6", x = { "bits", "bitwidth", "'INT' .. bits" },
    y = { "value", "{metric_name}", "test.value", has_zero = true }, labels = true,
    records = { over = joins.cross { "what", { "experts", "all weights" }, "bits", BITS },
      at = { int4 = "uniform-4-test:" }, may = { test = "{what == 'experts' and 'uniform' or 'all'}-{bits}-test:" } },
    by = "{what}", rules = { { "records[1].int4.reference", "original" } },
    caption = "The original has {('%.4g'):format(records[1].int4.reference)}. {list(records, \"what == 'experts'\", "
      .. "'Experts at INT{bits} lose {test.loss:2%} %.', ' ')} Dense weights are not offered at INT2 and INT3." },
  { charts = "dense_loss", records = "profile.h5:" }, { charts = "sensitivity_int2", records = "profile.h5:" },
  { kind = "bars", name = "decoding", title = "Time of one expert on one token, decoding included, by quantiser",
    source = "EdgeMoE, Fig. 7(b)", x = { "quantizer", "quantiser, INT4", "name" }, labels = true,
    y = { "us", "microseconds", "expert.compute_ns * 1e-3", has_zero = true },
    records = { QUANTIZERS, { over = { { name = "16 bits" } }, at = { expert = PLAIN } } },
    caption = "Weights are decoded in registers while they are multiplied, so that decoding has no time of its own; "
      .. "16 bits need none.{list(records, \"expert.bits == 4 and name ~= 'linear'\", ' Linear is {expert.compute_ns "
      .. "/ records[1].expert.compute_ns:2} times as fast as {name}.', '')}" },
  { charts = "conditional", records = "profile.h5:" },
  { kind = "lines", name = "latency",
    title = "Time per token by run mode and expert buffer, storage of 550 MB/s, 80 us",
    source = "EdgeMoE, Fig. 11, 16", by = "{mode}",
    records = { over = latencies, at = { row = "bench:rows[{mode} {memory}]" } },
    x = { "buffer", "expert buffer, share of the experts of the compiled assignment", "memory" },
    y = { "ms", "time per token (median), ms", "tpot_ms_median", has_zero = true },
    caption = "The smallest buffer holds ten experts, as the paper's. Modes without a buffer are level lines; the "
      .. "same bytes hold fewer experts where these have more bits." },
  { each = { { name = "evictions", file = "evictions-ours", whose = "" },
      { name = "paper_evictions", file = "evictions-paper", whose = ", the paper's procedure's bundle" } },
    { kind = "lines", name = "{name}", title = "Hits by eviction and buffer, without preloads{whose}",
      source = "EdgeMoE, Fig. 14", x = { "experts", "experts that the buffer holds", "buffer_share * n_total" },
      y = { "hits_percent", "experts found in the buffer, %", "100 * hit_rate", has_zero = true },
      records = "{file}:rows", by = "{evict}",
      of = { ten = { over = "{file}:rows", where = "math.abs(buffer_share * n_total - 10) < 0.5" } },
      caption = "Decoded tokens, counted by moec simulate on the calibration data or by moec bench on the test data. "
        .. "With ten experts '{top(ten, 'hit_rate').evict}' hits most: {top(ten, 'hit_rate').hit_rate:1%} %." } },
  { kind = "lines", name = "storage", title = "Storage by the loss allowed", source = "EdgeMoE, Fig. 17",
    x = { "target", "loss allowed", "target .. ' %'" },
    y = { "megabytes", "bundle, MB", "value / 1e6", has_zero = true },
    records = { by_targets "{whose == 'ours' and whose or 'paper'}-{target}:bundle_bytes",
      { over = TARGETS, at = { ours = "ours-2:" }, may = { fitting = FITTING },
        with = { whose = "best uniform bitwidth that meets it" },
        let = { value = "top(fitting, '-bundle.bundle_bytes').bundle.bundle_bytes" } } },
    by = "{whose}",
    caption = "{list(records, \"whose == 'ours'\", 'Asked for {target} %: {loss:2%} % on the test data.', ' ')}" },
  { kind = "lines", name = "target_times", title = "Time per token by the loss allowed, buffer of ten experts",
    source = "EdgeMoE, Fig. 17", x = { "target", "loss allowed", "target .. ' %'" }, by = "{whose}",
    y = { "ms", "time per token (median), ms", "value", has_zero = true },
    records = by_targets "bench{whose == 'ours' and '' or '-paper'}-{target}:rows[1].tpot_ms_median",
    caption = "Mode edgemoe on storage of 550 MB/s, 80 us." },
}

-- The samples, with what claims call by name.
local function read(folder)
  local samples = {
    { name = "switch", title = "The Switch sample: encoder-decoder, one expert a token, summaries of dialogues",
      remark = "This sample was trained in two phases. Before the second, whose weight decay of 1.0 removes what is "
        .. "left of the random initialisation, experts at INT2 lost less than 1 % of ROUGE-2." },
    { name = "decoder", title = "The decoder sample: OLMoE, four experts a token, perplexity" },
  }
  for _, sample in ipairs(samples) do
    sample.results, sample.n_used, sample.decoders = results.open(folder .. "/" .. sample.name), 0, {}
    local profile = sample.results:load("profile.h5")
    if profile then
      sample.profile, sample.n_expert, sample.n_total = profile, profile.n_expert, profile.n_layer * profile.n_expert
      sample.n_decoder_layer = profile.n_layer - profile.n_encoder_layer
      sample.n_used = sample.n_decoder_layer * profile.top_k
      if profile.n_encoder_layer == 0 then sample.decoders[1] = sample end
    end
    sample.metric = sample.results:at("ours-2-test:metric") or ""
    sample.search_metric = sample.results:at("ours-2:metric") or sample.results:at("profile:metric") or ""
    sample.metric_name = sample.metric == "rouge-2" and "ROUGE-2" or sample.metric
    sample.bench = sample.results:load("bench")
  end
  return samples
end

return {
  title = "EdgeMoE's experiment, repeated", shows_unmeasured = true, read = read, goals = goals,
  papers = { { findings = findings, entries = entries } },
  introduction = {
    "Section IV of EdgeMoE (Yi et al., IEEE Transactions on Mobile Computing, 2025) measured on two small models that "
      .. "this project trained, with moec alone: the paper's rows, its numbers beside ours. Losses are of data that no "
      .. "search saw; storage is emulated at 550 MB/s and 80 us a read; the expert buffer holds ten experts where "
      .. "nothing else is said.",
    "Times are of this machine: {bench.device.processor}, {bench.threads} threads. The paper's are of a Jetson TX2 "
      .. "(GPU) and a Raspberry Pi 4B.",
  },
}
