-- The procedure of EdgeMoE (section III-B, "Selecting expert-wise bitwidths"), for any list of importance.
--
-- 1. Enumerate the bitwidths for all experts at once. The bounds are the neighbours between which the tolerable loss
--    lies: `low` loses too much, `high` does not.
-- 2. Take the list of expert importance, least important first. The first K experts get `low`, the rest `high`; K goes up
--    while the measured loss meets the goal and down while it does not. Halving the step instead of walking needs
--    log2(experts) measurements.
local assignment = require "assignment"
local target = require "target"

local two_widths = {}

local function with_lowered(moec, ranking, k, low, high)
  local candidate = assignment.uniform(moec, high)
  for i = 1, k do candidate[ranking[i].layer][ranking[i].expert] = low end
  return candidate
end

-- The bounds for a loss goal: low is nil when even the smallest bitwidth is good enough.
local function bounds_by_loss(moec)
  local low
  for _, bits in ipairs(moec.bitwidths) do
    local result = moec.evaluate(assignment.uniform(moec, bits))
    moec.log(string.format("all experts at %d bits: loss %s (upper bound %s)", bits, target.percent(result.loss),
      target.percent(result.loss_high)))
    if result.accepted then return low, bits end
    low = bits
  end
  return low, nil
end

-- The bounds for a size goal alone: the largest bitwidth that fits, and the next.
local function bounds_by_size(moec)
  local low
  for _, bits in ipairs(moec.bitwidths) do
    if moec.size(assignment.uniform(moec, bits)) > moec.max_size then return low, bits end
    low = bits
  end
  return low, low
end

-- The assignment for the user's targets; nil and the reason where there is none. What an expert's importance is says
-- `harm(layer, expert, bits)`, asked for the lowest profiled bitwidth.
function two_widths.search(moec, harm)
  local profile = moec.profile
  if not profile then return nil, "needs a --profile or --data to measure with" end
  if not moec.max_loss and not moec.max_size then return nil, "give --max-loss or --max-size" end

  local lowest = profile.bits[1]
  if not lowest then return nil, "needs a profile with sensitivities: profile without --sensitivity none" end
  local ranking = assignment.ranking(moec, function(layer, expert)
    return harm(layer, expert, lowest)
  end)

  if not moec.max_loss then
    local low, high = bounds_by_size(moec)
    if not low then return nil, "even the smallest bitwidth is larger than --max-size" end
    local k = target.first(#ranking, function(k)
      return moec.size(with_lowered(moec, ranking, k, low, high)) <= moec.max_size
    end)
    return with_lowered(moec, ranking, k, low, high)
  end

  local low, high = bounds_by_loss(moec)
  if not high then return nil, "no bitwidth meets the loss target" end
  local candidate
  if not low then
    candidate = assignment.uniform(moec, high)
  else
    moec.log(string.format("bounds: %d and %d bits", low, high))
    local k = target.last(#ranking - 1, function(k)
      if k == 0 then return true end
      local result = moec.evaluate(with_lowered(moec, ranking, k, low, high))
      moec.log(string.format("%d of %d experts at %d bits: loss %s (upper bound %s): %s", k, #ranking, low,
        target.percent(result.loss), target.percent(result.loss_high), result.accepted and "more" or "fewer"))
      return result.accepted
    end)
    candidate = with_lowered(moec, ranking, k, low, high)
  end
  if moec.max_size and moec.size(candidate) > moec.max_size then
    return nil, string.format("the smallest assignment found within the loss target has %d bytes, more than --max-size",
      moec.size(candidate))
  end
  return candidate
end

return two_widths
