-- marginal: the least loss for each byte saved, over all profiled bitwidths.
--
-- Every expert starts at the largest profiled bitwidth. Going down the lower convex hull of its (bytes, damage) points gives
-- steps of rising damage for each byte saved; all steps of all experts, sorted by that price, are one list. A prefix of
-- the list is an assignment (Lagrangian relaxation: Everett 1963; Shoham and Gersho 1988 for bit allocation).
-- Damage is additive only in the list: every prefix that matters is measured whole, so interactions between experts
-- decide how far the search goes. At the edge single steps are tried one at a time.
local assignment = require "assignment"
local target = require "target"

local EDGE_TRIALS = 8 -- measurements spent on single steps behind the edge

-- What an expert loses at `bits`, relative to the baseline: mean KL divergence, a much less noisy measure of the same
-- harm than the change of perplexity, and never negative by luck.
local function damage(profile, layer, expert, bits)
  if bits == profile.baseline_bits then return 0 end
  return profile.kl[layer][expert][bits] - profile.baseline.kl
end

-- Steps along the lower convex hull, from the largest bitwidth down. Prices rise within one expert, so a sorted list of
-- all steps takes each expert's steps in order.
local function hull_steps(profile, bytes, widths, layer, expert)
  local steps, from = {}, #widths
  while from > 1 do
    local best, best_price
    for to = from - 1, 1, -1 do
      local saved = bytes[widths[from]] - bytes[widths[to]]
      local harm = damage(profile, layer, expert, widths[to]) - damage(profile, layer, expert, widths[from])
      local price = harm / saved
      if not best or price <= best_price then best, best_price = to, price end
    end
    steps[#steps + 1] = {layer = layer, expert = expert, bits = widths[best], price = best_price,
      harm = best_price * (bytes[widths[from]] - bytes[widths[best]])}
    from = best
  end
  return steps
end

local function all_steps(moec, widths)
  local bytes, list = assignment.expert_bytes(moec), {}
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do
      for order, step in ipairs(hull_steps(moec.profile, bytes, widths, layer, expert)) do
        step.order = order
        list[#list + 1] = step
      end
    end
  end
  table.sort(list, function(a, b)
    if a.price ~= b.price then return a.price < b.price end
    if a.layer ~= b.layer then return a.layer < b.layer end
    if a.expert ~= b.expert then return a.expert < b.expert end
    return a.order < b.order
  end)
  return list
end

local function prefix(moec, steps, k, top)
  local candidate, harm = assignment.uniform(moec, top), 0
  for i = 1, k do
    candidate[steps[i].layer][steps[i].expert] = steps[i].bits
    harm = harm + steps[i].harm
  end
  return candidate, harm
end

-- Bitwidths that the profile measured, the baseline among them, increasing.
local function profiled_widths(profile)
  local widths = {profile.baseline_bits}
  for _, bits in ipairs(profile.bits) do widths[#widths + 1] = bits end
  table.sort(widths)
  return widths
end

-- Steps behind the edge, each tried alone on top of what is already there.
local function try_edge(moec, steps, k, candidate)
  local kept, skipped, trials = 0, {}, 0
  for i = k + 1, #steps do
    if trials == EDGE_TRIALS then break end
    local step = steps[i]
    local name = step.layer * (moec.model.experts + 1) + step.expert
    if not skipped[name] then
      local before = candidate[step.layer][step.expert]
      candidate[step.layer][step.expert] = step.bits
      trials = trials + 1
      if target.met(moec, candidate) then
        kept = kept + 1
      else
        candidate[step.layer][step.expert] = before
        skipped[name] = true -- its later steps cost more still
      end
    end
  end
  moec.log(string.format("%d of %d single steps behind the edge kept", kept, trials))
  return candidate
end

return function(moec)
  local profile = moec.profile
  if not profile then return nil, "needs a --profile or --data to measure with" end
  if not moec.max_loss and not moec.max_size then return nil, "give --max-loss or --max-size" end
  if not profile.bits[1] then
    return nil, "needs a profile with sensitivities: profile without --sensitivity none"
  end
  local widths = profiled_widths(profile)
  local top = widths[#widths]
  local steps = all_steps(moec, widths)

  if not moec.max_loss then
    local k = target.first(#steps, function(k) return moec.size((prefix(moec, steps, k, top))) <= moec.max_size end)
    if not k then return nil, "even the smallest bitwidth is larger than --max-size" end
    return (prefix(moec, steps, k, top))
  end

  local function ok(k)
    local candidate, harm = prefix(moec, steps, k, top)
    local result = moec.evaluate(candidate)
    moec.log(string.format("%d of %d steps (%s): loss %s (upper bound %s); KL %.5f, %.5f more than the start if additive: %s",
      k, #steps, assignment.describe(candidate), target.percent(result.loss), target.percent(result.loss_high),
      result.kl, harm, result.accepted and "more" or "fewer"))
    return result.accepted
  end
  if not ok(0) then
    local whole = assignment.uniform(moec, moec.bitwidths[#moec.bitwidths])
    if moec.evaluate(whole).accepted and not (moec.max_size and moec.size(whole) > moec.max_size) then return whole end
    return nil, "not even the largest profiled bitwidth meets the loss target"
  end
  local k = target.last(#steps, ok)
  local candidate = try_edge(moec, steps, k, (prefix(moec, steps, k, top)))
  if moec.max_size and moec.size(candidate) > moec.max_size then
    return nil, string.format("the smallest assignment found within the loss target has %d bytes, more than --max-size",
      moec.size(candidate))
  end
  return candidate
end
