-- prior: the strongest prior for experts in the cache that keeps the loss within the target, found by halving; where low
-- copies may be searched, the same once more with HOBBIT's precision at a miss.
--   moec tune MODEL.moec --data FILE --reference MODEL --max-loss 2% --policy prior -o TUNED.moec
-- moec fit takes it too: of each plan that runs in the memory, and by time.
local target = require "target"

local STEPS = 32 -- of a prior of 0.01 each

local function cost(result) return result.token_ms or result.read_bytes or result.bytes_per_token end

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
    if not least or cost(result) < least then
      best, least = candidate(k), cost(result)
    end
  end

  for draft = 1, moec.drafts do
    local runs = not moec.draft_slots or moec.draft_slots[draft] > 0
    if runs then search {draft = draft} end
    if runs and moec.with.precision and moec.model.top_k > 1 then
      search {draft = draft, precision = "hobbit:0.8:1"}
    end
  end
  if not best then return nil, "even the mildest prior loses more than the target" end
  return best
end
