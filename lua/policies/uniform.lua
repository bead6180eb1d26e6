-- uniform: one bitwidth for every expert.
--   --bits N        that bitwidth (needs neither profile nor data)
--   --max-loss      the smallest bitwidth whose measured loss meets the target
--   --max-size      the largest bitwidth that fits
local assignment = require "assignment"
local target = require "target"

return function(moec)
  if moec.bits then return assignment.uniform(moec, moec.bits) end
  if not moec.max_loss and not moec.max_size then
    return nil, "give --bits, --max-loss or --max-size"
  end
  local best
  for _, bits in ipairs(moec.bitwidths) do
    local candidate = assignment.uniform(moec, bits)
    local ok, why, result = target.met(moec, candidate)
    if result then
      moec.log(string.format("uniform INT%d: loss %s (upper bound %s): %s", bits, target.percent(result.loss),
        target.percent(result.loss_high), ok and "meets the target" or "too much"))
    end
    if ok then
      best = candidate
      if moec.max_loss then break end -- the smallest that is good enough
    elseif why == "size" then
      break -- larger bitwidths do not fit either
    end
  end
  if not best then return nil, "no uniform bitwidth meets the targets" end
  return best
end
