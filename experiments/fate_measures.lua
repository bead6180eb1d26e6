-- What claims and the page about Fate share.
local joins = require "joins"

local measures = {}

-- Tokens of a prompt, and memory in per cent of the experts at INT4.
measures.PLACES = joins.cross { "prompt", { 128, 256, 512 }, "memory", { 12.5, 25, 50, 75 } }

local SIDES = { -- files and modes
  demand = "others-{prompt}:rows[io-exp", demand_int4 = "others-{prompt}:rows[lod",
  cached = "others-{prompt}:rows[io-exp+lru",
  cached_int4 = "none-{prompt}:rows[cache", paths = "others-{prompt}:rows[eap", fate = "gate-{prompt}:rows[cache",
  low = "low-{prompt}:rows[cache",
}

-- The path of what was timed of a side.
function measures.timed(side, rate) return "fate/" .. SIDES[side] .. " {memory} " .. rate .. "]" end

-- Share of the sum that the first `n` of ascending counts have; n may be between two.
local function first_share(counts, n)
  local taken, sum = 0, 0
  for e, count in ipairs(counts) do
    sum = sum + count
    taken = taken + count * math.max(0, math.min(1, n - (e - 1)))
  end
  return taken / sum
end

-- By layer, of the experts that a prompt takes the part that fewest of its tokens take: the share of the tokens'
-- choices that goes to them, and how many experts a prompt takes; means over the windows of a profile, each a prompt.
-- Fig. 9.
function measures.popular(part)
  return function(sample)
    local layers = {}
    for _, window in ipairs(sample.profile and sample.profile.prompts or {}) do
      for layer, counts in ipairs(window) do
        local one = layers[layer] or { layer = layer, part = part, sum = 0, n_active = 0, n = 0 }
        layers[layer] = one
        table.sort(counts)
        if #counts > 0 then
          one.sum, one.n_active = one.sum + first_share(counts, part * #counts), one.n_active + #counts
          one.n = one.n + 1
        end
      end
    end
    for _, one in ipairs(layers) do one.share, one.active = one.sum / one.n, one.n_active / one.n end
    return layers
  end
end

return measures
