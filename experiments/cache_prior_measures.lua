-- What claims and the page about cache-conditional experts share.
local joins = require "joins"

local measures = {}

local PRIORS = { 0, 0.1, 0.3, 0.5, 0.7, 0.9 } -- those that were timed; 0 is the router's own choice
local TIMED = "throughput/prior-%s-%s-%s:rows[cache {100 * %s / n_expert} 550]"

-- Shares of tokens whose last expert is the best one in its place, by MoE layer.
measures.CHOICES = {
  over = function(sample)
    local layers = {}
    for layer = 1, sample.n_layer do layers[layer] = { layer = layer } end
    return layers
  end,
  at = { share = "studies.h5:choice/right[#{layer}]" },
}

-- Times of a token by prior with so many slots, behind prompts of so many tokens, as multiples of those without.
function measures.speeds(size, prompt)
  local slots = "{" .. size .. "}"
  return { over = joins.cross { "prior", PRIORS }, with = { prompt = prompt },
    at = { row = TIMED:format("{prior}", slots, prompt, size), none = TIMED:format(0, slots, prompt, size) },
    let = { times = "none.tpot_ms_median / tpot_ms_median", slots = size } }
end

-- Times of a token by prior and slots, behind short prompts and behind long ones.
local function lengths(size)
  local function timed(prompt) return TIMED:format("{prior}", "{" .. size .. "}", prompt, size) .. ".tpot_ms_median" end
  return { over = joins.cross { "prior", PRIORS }, at = { short = timed(50), long = timed(350) } }
end

measures.LENGTHS = { lengths("half"), lengths("three_quarters") }

return measures
