-- What experiments/edgemoe.sh measured of one sample, and what claims and charts share.
local joins = require "joins"
local results = require "results"

local measures = {}

measures.TARGETS = joins.cross { "target", { 2, 5, 10, 20 } }
measures.BITS = { 2, 3, 4, 8 }
measures.UNIFORM = {
  over = joins.cross { "bits", measures.BITS }, at = { bundle = "uniform-{bits}:", test = "uniform-{bits}-test:" },
}
measures.QUANTIZERS = joins.cross { "name", { "linear", "hqq", "outlier", "log" } }
measures.INT4_EXPERT = "quantizer-{name}-device:compute.experts[bits=4]"

-- A sample's name, its folder's results, its profile, and what claims call by name.
function measures.read(folder, name)
  local sample = { name = name, results = results.open(folder .. "/" .. name), n_used = 0, is_decoder = false,
    decoders = {} }
  local profile = sample.results:load("profile.h5")
  if profile then
    sample.profile, sample.n_expert, sample.n_total = profile, profile.n_expert, profile.n_layer * profile.n_expert
    sample.n_decoder_layer = profile.n_layer - profile.n_encoder_layer
    sample.n_used, sample.is_decoder = sample.n_decoder_layer * profile.top_k, profile.n_encoder_layer == 0
    if sample.is_decoder then sample.decoders = { sample } end
  end
  sample.metric = sample.results:at("ours-2-test:metric") or ""
  sample.search_metric = sample.results:at("ours-2:metric") or sample.results:at("profile:metric") or ""
  sample.metric_name = sample.metric == "rouge-2" and "ROUGE-2" or sample.metric
  return sample
end

-- The smallest uniform bundle whose loss on the test data meets a target, and its bits.
function measures.best_uniform(sample, record)
  local best
  for _, one in ipairs(joins.value(measures.UNIFORM, sample)) do
    if one.test.loss <= record.target / 100 and (not best or one.bundle.bundle_bytes < best.bundle.bundle_bytes) then
      best = one
    end
  end
  return best
end

-- Losses of two neighbours of a layer where each alone has the fewest bits.
function measures.neighbours(sample)
  local list = {}
  for _, losses in ipairs(sample.profile and sample.profile.expert_losses or {}) do
    for e = 1, #losses - 1 do table.insert(list, { one = losses[e], other = losses[e + 1] }) end
  end
  return list
end

-- Rows of limited memory, with the experts that fit; one that does not fit has no limit to tell.
function measures.limits(file, whose)
  return { over = file .. ":rows", where = "mode == 'edgemoe' and expert_buffer_bytes > 0", with = { whose = whose },
    let = { experts = "expert_buffer_bytes / expert_total_bytes * n_total" } }
end

return measures
