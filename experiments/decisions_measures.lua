-- What experiments/decisions.sh measured of one model: points of loss and misses by settings of decisions, tunings and
-- times. A group whose folder is missing is empty.
local results = require "results"

local measures = {}

measures.METHODS = { "top-k", "cache-prior", "max-rank", "cumsum", "prune" } -- as --route calls them
measures.PAIRS = { { 16, 4 }, { 8, 4 }, { 8, 2 }, { 4, 2 } }                  -- bits and low bits

-- ---- points ----

-- The router's own choice has no name.
local function setting_of(root)
  local words = {}
  for _, word in ipairs { root.route ~= "top-k" and root.route or "", root.precision or "", root.prefill or "" } do
    if word ~= "" then table.insert(words, word) end
  end
  return table.concat(words, " with ")
end

-- Adds to one moec eval with decisions what follows from it: shares are of the experts that the router would take.
-- Kinds: "none" where experts have one precision, "hobbit" at a miss, "always", "fate" at a misprediction.
local function derive(point, top_k)
  local method, strength = (point.route or ""):match("^([%a%-]+):?([%d.]*)")
  local kind, first, second = (point.precision or ""):match("^(%a+):?([%d.]*):?([%d.]*)")
  point.method, point.strength, point.setting = method or "top-k", tonumber(strength) or 0, setting_of(point)
  point.kind, point.first_score, point.second_score = kind or "none", tonumber(first), tonumber(second)
  point.slots, point.low_slots, point.keep_top = point.slots or 0, point.low_slots or 0, point.keep_top or 0
  point.n_low, point.n_skipped = point.experts_low or 0, point.experts_skipped or 0
  -- A pruned token takes as many as it is left with, and nothing counts the others.
  local is_pruned = point.method == "prune" and point.strength > 0
  local n_chosen = is_pruned and point.experts_taken * top_k / point.strength or point.experts_taken + point.n_skipped
  point.n_chosen, point.taken_low_share = n_chosen, point.n_low / point.experts_taken
  point.low_share, point.skipped_share = point.n_low / n_chosen, point.n_skipped / n_chosen
  point.miss_rate = point.experts_missed / n_chosen
  point.belady_rate = point.belady_missed and point.belady_missed / n_chosen
end

-- The prior with the fewest misses whose loss is within a limit; nil when there is none.
function measures.fewest(sample, slots, limit)
  local best
  for _, point in ipairs(sample.routes) do
    if point.method == "cache-prior" and point.slots == slots and point.loss <= limit
      and (not best or point.experts_missed < best.experts_missed) then
      best = point
    end
  end
  return best
end

-- ---- fronts: the settings of a method that no other one of it beats in both loss and misses ----

local function is_on(point, index, all)
  for i, by in ipairs(all) do
    local is_better = by.miss_rate < point.miss_rate or by.loss < point.loss or i < index
    if i ~= index and by.miss_rate <= point.miss_rate and by.loss <= point.loss and is_better then return false end
  end
  return true
end

-- By rising misses, so by falling loss: points with so many slots that keep so many experts (nil: any number), and the
-- router's own choice, which every method ends in.
function measures.front(sample, method, slots, keep)
  local all, front = {}, {}
  for _, point in ipairs(sample.routes) do
    local is_kept = point.method == method and (not keep or point.keep_top == keep)
    if (is_kept or point.method == "top-k") and point.slots == slots then table.insert(all, point) end
  end
  for i, point in ipairs(all) do
    if is_on(point, i, all) then table.insert(front, point) end
  end
  table.sort(front, function(a, b) return a.miss_rate < b.miss_rate end)
  return front
end

-- Its loss at a rate of misses, between points by a straight line; nil where the front does not reach.
function measures.front_loss(front, miss_rate)
  for i, right in ipairs(front) do
    local left = front[i - 1]
    if right.miss_rate == miss_rate then return right.loss end
    if right.miss_rate > miss_rate then
      local part = left and (miss_rate - left.miss_rate) / (right.miss_rate - left.miss_rate)
      return left and left.loss + part * (right.loss - left.loss)
    end
  end
end

-- ---- tunings and decoding ----

-- Whether held-out loss minus certificate is within the 90 % interval of both together.
local function holds(proven, test)
  local difference = test.loss - proven.loss
  local certified = difference > 0 and proven.loss_high - proven.loss or proven.loss - proven.loss_low
  local tested = difference > 0 and test.loss - test.loss_low or test.loss_high - test.loss
  return math.abs(difference) <= math.sqrt(certified * certified + tested * tested)
end

-- First those of the combinations, then seeds.
local function read_tunings(sample)
  local tunings, seeds = {}, {}
  for _, root in ipairs(sample.results:list("tunings")) do
    local proven, test = root.decisions or {}, sample.results:load("tunings/" .. root.file .. "-test")
    local is_seeded = root.file:find("^seed%-") ~= nil
    if not root.file:find("%-test$") then
      table.insert(is_seeded and seeds or tunings, { name = root.file, is_seeded = is_seeded,
        setting = setting_of(proven), proven = proven, test = test, holds = test and holds(proven, test) })
    end
  end
  return table.move(seeds, 1, #seeds, #tunings + 1, tunings)
end

measures.SIDES = { "static", "route", "precision", "route,precision" }
measures.DECODINGS = {
  { share = 25, rate = 550, least = 1.35 }, { share = 50, rate = 550, least = 1.35 },
  { share = 25, rate = 50, least = 1.6 }, { share = 50, rate = 50, least = 1.6 },
}

-- A bundle in as much memory as a share of the static bundle's experts, by the predictor that is fastest for it; nil
-- where it was not timed.
function measures.side(sample, side, decoding)
  local best
  for _, predictor in ipairs { "none", "frequency", "path", "gate", "path+gate" } do
    local file = ("decoding/%s-%d-%d-%s"):format(side, decoding.share, decoding.rate, predictor)
    local row = sample.results:at(file .. ":rows[1]")
    if row and row.tpot_ms_median and not (best and best.tpot_ms_median <= row.tpot_ms_median) then
      best = setmetatable({ side = side, predictor = predictor }, { __index = row })
    end
  end
  return best
end

-- ---- all ----

-- Bundles of `bits` with low copies of `low_bits` of which something was measured, with their groups by name: what the
-- group's folder is called, with %s for the bits.
local function read_pairs(sample, groups)
  local list = {}
  for _, bits in ipairs(measures.PAIRS) do
    local pair, n = { bits = bits[1], low_bits = bits[2], widths = bits[1] .. "-" .. bits[2] }, 0
    for name, folder in pairs(groups) do
      pair[name] = sample.results:list(folder:format(pair.widths))
      n = n + #pair[name]
    end
    if n > 0 then table.insert(list, pair) end
  end
  return list
end

function measures.read(folder, name)
  local sample = { name = name }
  sample.results = results.open(folder .. "/" .. name, function(root)
    if root.experts_taken then derive(root, sample.top_k) end
  end)
  local model = sample.results:at("model:model")
  if not model or not model.experts or not model.top_k then
    error(("'%s/%s/model.json' does not describe a Mixture-of-Experts model"):format(folder, name), 0)
  end
  sample.family, sample.n_layer = model.family, model.moe_layers
  sample.n_expert, sample.top_k = model.experts, model.top_k
  sample.half, sample.quarter, sample.three_quarters = model.experts // 2, model.experts // 4, model.experts * 3 // 4
  -- J: the best experts that the paper keeps in any case, of models with many experts a token and of others.
  sample.usual_keep = sample.top_k > 2 and 2 or 1
  for _, group in ipairs { "routes", "starts", "ranges", "throughput", "fate", "systems", "evictions", "tasks" } do
    sample[group] = sample.results:list(group)
  end
  sample.pairs = read_pairs(sample, { points = "pair-%s", prefill = "prefill-%s", prompt_times = "prefill-%s-times",
    dynamic = "dynamic-%s" })
  sample.first_pair = { sample.pairs[1] }
  sample.blocks = read_pairs(sample, { losses = "blocks-%s", times = "blocks-%s-times" })
  sample.profile, sample.studies = sample.results:load("profile.h5"), sample.results:load("studies.h5")
  sample.tunings, sample.most_kept = read_tunings(sample), 0 -- J, the most experts that a setting of a route keeps
  for _, point in ipairs(sample.routes) do sample.most_kept = math.max(sample.most_kept, point.keep_top) end
  return sample
end

return measures
