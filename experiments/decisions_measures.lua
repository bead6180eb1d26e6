-- What experiments/decisions.sh measured of one model: points of loss and misses by settings of decisions, tunings and
-- times. A group whose folder is missing is empty.
local joins = require "joins"
local results = require "results"

local measures = {}

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
    local is_its = point.method == "cache-prior" and point.slots == slots and point.loss <= limit
    if is_its and not (best and point.experts_missed >= best.experts_missed) then best = point end
  end
  return best
end

-- The settings of a method that no other one of it beats in both loss and misses, by rising misses, so by falling loss:
-- points with so many slots that keep so many experts (nil: any number), and the router's own choice, which every
-- method ends in.
function measures.front(sample, method, slots, keep)
  local all, front = {}, {}
  for _, point in ipairs(sample.routes) do
    local is_kept = point.method == method and (not keep or point.keep_top == keep)
    if (is_kept or point.method == "top-k") and point.slots == slots then table.insert(all, point) end
  end
  joins.sort(all, "loss")
  joins.sort(all, "miss_rate")
  for _, point in ipairs(all) do
    if #front == 0 or point.loss < front[#front].loss then table.insert(front, point) end
  end
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

-- ---- tunings ----

-- Whether held-out loss minus certificate is within the 90 % interval of both together.
local function holds(sample, root)
  local proven, test = root.decisions, sample.results:load("tunings/" .. root.file .. "-test")
  if not proven or not test then return nil end
  local is_more = test.loss > proven.loss
  local certified = is_more and proven.loss_high - proven.loss or proven.loss - proven.loss_low
  local tested = is_more and test.loss - test.loss_low or test.loss_high - test.loss
  return math.abs(test.loss - proven.loss) <= math.sqrt(certified * certified + tested * tested)
end

-- First those of the combinations, then seeds.
local TUNINGS = { over = "tunings/*", where = "not file:find('%-test$')", by = "is_seed",
  may = { test = "tunings/{file}-test:", holds = holds,
    setting = function(_, root) return setting_of(root.decisions or {}) end },
  let = { proven = "decisions", is_seed = "file:find('^seed%-') and 1 or 0" } }

-- ---- all ----

-- Bundles of `bits` with low copies of `low_bits` of which something was measured in one of the folders, which are
-- called so with %s for the bits.
local function read_pairs(sample, ...)
  local list = {}
  for _, bits in ipairs { { 16, 4 }, { 8, 4 }, { 8, 2 }, { 4, 2 } } do
    local pair, n = { bits = bits[1], low_bits = bits[2], widths = bits[1] .. "-" .. bits[2] }, 0
    for _, folder in ipairs { ... } do n = n + #sample.results:list(folder:format(pair.widths)) end
    if n > 0 then table.insert(list, pair) end
  end
  return list
end

function measures.read(folder, name)
  local sample = { name = name, ranks = {}, layers = {}, most_kept = 0 }
  sample.results = results.open(folder .. "/" .. name, function(root)
    if root.experts_taken then derive(root, sample.top_k) end
  end)
  local model = sample.results:at("model:model")
  if not model or not model.experts or not model.top_k then
    error(("'%s/%s/model.json' does not describe a Mixture-of-Experts model"):format(folder, name), 0)
  end
  sample.family, sample.n_layer = model.family, model.moe_layers
  sample.n_expert, sample.top_k = model.experts, model.top_k
  sample.caches = { half = model.experts // 2, quarter = model.experts // 4, three_quarters = model.experts * 3 // 4 }
  sample.half, sample.quarter = sample.caches.half, sample.caches.quarter
  for rank = 1, sample.top_k do sample.ranks[rank] = rank end
  for layer = 1, sample.n_layer do sample.layers[layer] = { layer = layer } end
  -- J: the best experts that the paper keeps in any case, of models with many experts a token and of others; and the
  -- most that a setting of a route keeps.
  sample.usual_keep = sample.top_k > 2 and 2 or 1
  sample.routes, sample.fate = sample.results:list("routes"), sample.results:list("fate")
  for _, point in ipairs(sample.routes) do sample.most_kept = math.max(sample.most_kept, point.keep_top) end
  sample.pairs = read_pairs(sample, "pair-%s", "prefill-%s", "prefill-%s-times", "dynamic-%s")
  sample.first_pair, sample.blocks = { sample.pairs[1] }, read_pairs(sample, "blocks-%s", "blocks-%s-times")
  sample.profile = sample.results:load("profile.h5")
  sample.tunings = joins.value(TUNINGS, sample, {})
  return sample
end

return measures
