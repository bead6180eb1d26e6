-- prior: the strongest prior for experts in the cache that keeps the loss within the target, found by halving; where low
-- copies may be searched, the same once more with HOBBIT's precision at a miss.
--   moec tune MODEL.moec --data FILE --reference MODEL --max-loss 2% --policy prior -o TUNED.moec
local target = require "target"

local STEPS = 32 -- of a prior of 0.01 each

return function(moec)
  if not moec.with.route then return nil, "searches priors: name route in --with" end
  local best, least

  -- The last prior within the target with these settings, if it reads less than what was found before.
  local function search(settings)
    local function candidate(k)
      local c = {draft = settings.draft, precision = settings.precision}
      if k > 0 then c.route = string.format("cache-prior:%g", k / 100) end
      return c
    end
    if not moec.evaluate(candidate(0)).accepted then return end
    local k = target.last(STEPS, function(k) return moec.evaluate(candidate(k)).accepted end)
    if k == 0 and not settings.precision then return end
    local result = moec.evaluate(candidate(k))
    moec.log(string.format("%s: loss %s, misses %s (%.2f a token), %s a token", candidate(k).route or settings.precision,
      target.percent(result.loss), target.percent(result.missed_share), result.misses_per_token,
      target.bytes(result.bytes_per_token)))
    if not least or result.bytes_per_token < least then
      best, least = candidate(k), result.bytes_per_token
    end
  end

  for draft = 1, moec.drafts do
    search {draft = draft}
    if moec.with.precision and moec.model.top_k > 1 then search {draft = draft, precision = "hobbit:0.8:1"} end
  end
  if not best then return nil, "even the mildest prior loses more than the target" end
  return best
end
