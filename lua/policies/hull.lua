-- hull: the smallest bundle over experts, projections and dense matrices together.
--
-- Every projection of every expert and every dense matrix is a unit that may take one of several variants. The lower convex
-- hull of a unit's (bytes, harm) points gives steps of rising harm for each byte saved; the steps of all units, sorted by that
-- price, are one list, and a prefix of the list is a plan (Lagrangian relaxation: Everett 1963; Shoham and Gersho 1988).
-- Under the model of harm no plan of these variants that costs as little is smaller than a prefix by more than one step.
--
-- The model of harm is additive, the truth compounds: after each measurement the model is scaled to what was measured. KL
-- says what a plan loses with far less noise than the loss itself, so the prefix is found by KL, and the ratio of loss to KL
-- comes from all measurements together. GPTQ has fitted the search part, and its first windows, on which plans are compared,
-- are few: the select part, which nothing has seen, says what the plan that was found loses, and the search part only how much
-- more or less others do.
--
-- A prefix leaves harm unspent before a step that is too large, such as a whole embedding. Exchanges use it: the plan nearest to
-- the target may be a prefix in which some small steps are undone for a large one.
--
-- The answer is a sequence for the certificate: from the safest plan to the one whose estimate just meets the target.
local assignment = require "assignment"
local exchange = require "exchange"
local target = require "target"

local MAX_EVALUATIONS = 12 -- of prefixes
local CLOSE = 0.01 -- a prefix is found when its KL is that close to the goal; moec.loss_tolerance says what will do instead
-- The plans of the sequence expect half of the target, then a loss of so many standard errors of the certificate under it.
-- What is expected may itself be too low: without the first, a bundle of 16 bits is what remains when the second fails.
local SAFE_SHARE = 0.5
local MARGINS = {3.0, 1.4} -- each test costs as much as the certificate's part
local MAX_SEQUENCE = 8
local WORTH_MIXING = 0.05
local ALIKE_EVALUATIONS = 5 -- of plans whose experts are all alike
local EXCHANGE_EVALUATIONS = 2 -- of plans that use what a prefix leaves of its harm
local WORTH_EXCHANGING = 0.005 -- of the bundle's bytes

-- ---- units and steps ----

-- Bytes of each unit at each variant, relative to `top`: what the bundle gains when all such units change.
local function projection_bytes(moec, variants, top)
  local experts, bytes = moec.model.layers * moec.model.experts, {}
  local base = moec.size(top)
  for _, projection in ipairs(moec.model.projections) do
    bytes[projection] = {}
    for _, name in ipairs(variants.names) do
      local all = assignment.copy(top)
      for layer = 1, moec.model.layers do
        for expert = 1, moec.model.experts do all[layer][expert][projection] = name end
      end
      bytes[projection][name] = (moec.size(all) - base) / experts
    end
  end
  return bytes
end

local function dense_bytes(moec, variants, top, index)
  local bytes, base, changed = {}, moec.size(top), assignment.copy(top)
  for _, name in ipairs(variants.dense[index].variants) do
    changed.dense[index] = name
    bytes[name] = moec.size(changed) - base
  end
  return bytes
end

-- Where tokens' reads are compared and not bundles (moec.pair_share): how often an expert is taken, 1 on average, and how much of
-- its gate and down is read.
local function mean_activations(moec)
  local sum = 0
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do sum = sum + moec.profile.activations[layer][expert] end
  end
  return math.max(sum / (moec.model.layers * moec.model.experts), 1)
end

local function read_weight(moec, unit, mean)
  if not moec.pair_share or unit.dense then return 1 end
  local taken = moec.profile.activations[unit.layer][unit.expert] / mean
  return math.max(taken, 1e-3) * (unit.projection == "up" and 1 or moec.pair_share)
end

local function weighted(bytes, weight)
  if weight == 1 then return bytes end
  local result = {}
  for name, size in pairs(bytes) do result[name] = size * weight end
  return result
end

-- Steps along the lower convex hull of a unit's points, from the variant with the least harm down.
local function add_steps(steps, unit, bytes, harm)
  local points = {}
  for name, size in pairs(bytes) do -- what is not fitted has infinite harm
    if harm[name] < math.huge then points[#points + 1] = {name = name, bytes = size, harm = harm[name]} end
  end
  table.sort(points, function(a, b)
    if a.harm ~= b.harm then return a.harm < b.harm end
    if a.bytes ~= b.bytes then return a.bytes < b.bytes end
    return a.name < b.name
  end)
  local from, order = points[1], 0
  unit.first = from.name
  while true do
    local best, best_price
    for _, point in ipairs(points) do
      local saved = from.bytes - point.bytes
      if saved > 0 then
        local price = (point.harm - from.harm) / saved
        if not best or price < best_price or (price == best_price and point.bytes < best.bytes) then
          best, best_price = point, price
        end
      end
    end
    if not best then return end
    order = order + 1
    steps[#steps + 1] = {unit = unit, order = order, name = best.name, price = best_price, harm = best.harm - from.harm,
      bytes = from.bytes - best.bytes}
    from = best
  end
end

local function by_price(a, b)
  if a.price ~= b.price then return a.price < b.price end
  if a.unit.index ~= b.unit.index then return a.unit.index < b.unit.index end
  return a.order < b.order
end

-- Every unit at its first variant, the one with the least harm. Units are numbered; tables of names.
local function all_units(moec, variants)
  local units, top = {}, {dense = {}}
  local function add(unit)
    unit.index = #units + 1
    units[unit.index] = unit
  end
  for layer = 1, moec.model.layers do
    top[layer] = {}
    for expert = 1, moec.model.experts do
      top[layer][expert] = {}
      for _, projection in ipairs(moec.model.projections) do
        top[layer][expert][projection] = variants.names[#variants.names]
        add {layer = layer, expert = expert, projection = projection, harm = variants.harm.experts[layer][expert][projection]}
      end
    end
  end
  for index, matrix in ipairs(variants.dense) do
    top.dense[index] = matrix.variants[#matrix.variants]
    add {dense = index, harm = variants.harm.dense[index]}
  end
  return units, top
end

local function set(plan, unit, name)
  if unit.dense then plan.dense[unit.dense] = name else plan[unit.layer][unit.expert][unit.projection] = name end
end

local function all_steps(moec, variants)
  local units, top = all_units(moec, variants)
  local projections, steps, mean = projection_bytes(moec, variants, top), {}, mean_activations(moec)
  for _, unit in ipairs(units) do
    local bytes = unit.dense and dense_bytes(moec, variants, top, unit.dense) or projections[unit.projection]
    add_steps(steps, unit, weighted(bytes, read_weight(moec, unit, mean)), unit.harm)
    set(top, unit, unit.first)
  end
  table.sort(steps, by_price)
  return steps, top
end

-- ---- prefixes ----

-- harm[k]: what the first k steps cost together under the model.
local function sums(steps)
  local harm = {[0] = 0}
  for k, step in ipairs(steps) do harm[k] = harm[k - 1] + step.harm end
  return harm
end

local function prefix(steps, top, k)
  local plan = assignment.copy(top)
  for i = 1, k do set(plan, steps[i].unit, steps[i].name) end
  return plan
end

-- The longest prefix whose harm stays within the budget.
local function longest(harm, n, budget)
  return target.last(n, function(k) return k == 0 or harm[k] <= budget end)
end

-- ---- measuring ----

-- What is known of the relation between model, KL and loss.
local function new_scale() return {factor = 1, kl = 0, nll = 0, bias = 1} end

local function observe(scale, result)
  if result.kl > 0 then
    scale.kl = scale.kl + result.kl
    scale.nll = scale.nll + math.log(1 + math.max(result.loss, -0.5))
  end
end

-- Loss for each nat of KL, of both parts by their windows. A handful of windows can say anything; the truth is near 1.
local function ratio(scale)
  if scale.kl <= 0 then return 1 end
  local value, select = scale.nll / scale.kl, scale.select
  if select then value = (value * select.others + select.ratio * select.windows) / (select.others + select.windows) end
  return math.min(math.max(value, 0.5), 2)
end

-- What the select part says of the plan that was found. Where it has fewer windows than were searched on, it may only raise
-- what is expected.
local function correct(scale, parts, found, select)
  scale.bias = select.kl / found.kl
  if parts.select < parts.search then scale.bias = math.max(scale.bias, 1) end
  scale.select = {ratio = math.log(1 + math.max(select.loss, -0.5)) / select.kl, windows = parts.select, others = parts.search}
end

local function expected_loss(scale, kl) return math.exp(ratio(scale) * scale.bias * kl) - 1 end
local function kl_of_loss(scale, loss) return math.log(1 + loss) / (ratio(scale) * scale.bias) end

-- The harm at which KL reaches `kl` on the line through two measured prefixes; nil without both, or where they say nothing.
local function between(harm, low, high, kl)
  if not low or not high or low.kl <= 0 or high.kl <= low.kl or harm[high.k] <= harm[low.k] then return nil end
  return harm[low.k] + (kl - low.kl) * (harm[high.k] - harm[low.k]) / (high.kl - low.kl)
end

-- The prefix whose expected loss is `goal`: the model is scaled to what was measured until both agree. Between two measured
-- prefixes, one on each side of the goal, it is a line. With a metric that has no KL the loss itself is compared.
local function find_prefix(moec, steps, top, harm, goal, scale)
  local n, best = #steps, {k = 0}
  local low, high = 0, n + 1 -- measured: low is within the goal, high is not
  local below, above         -- the same, where KL is known
  for _ = 1, MAX_EVALUATIONS do
    local line = between(harm, below, above, kl_of_loss(scale, goal))
    local k = longest(harm, n, line or kl_of_loss(scale, goal) / scale.factor)
    if line and k <= low then break end -- the next step is too large
    if k >= high then k = (low + high) // 2 end
    if k <= low then k = low > 0 and math.min((low + high + 1) // 2, n) or k end
    if k == best.k and best.result then break end
    local plan = prefix(steps, top, k)
    local result = moec.evaluate(plan)
    observe(scale, result)
    local loss = result.kl > 0 and expected_loss(scale, result.kl) or result.loss
    moec.log(string.format("%d of %d steps (%s): loss %s, KL %.5f; %.5f if additive; expected loss %s, goal %s", k, n,
      target.bytes(moec.size(plan)), target.percent(result.loss), result.kl, harm[k], target.percent(loss),
      target.percent(goal)))
    if result.kl > 0 and harm[k] > 0 then scale.factor = result.kl / harm[k] end
    if moec.loss_tolerance and math.abs(loss - goal) <= moec.loss_tolerance * goal then
      best = {k = k, result = result, loss = loss}
      break
    end
    if loss <= goal then
      if k >= best.k then best = {k = k, result = result, loss = loss} end
      if k >= low then below = {k = k, kl = result.kl} end
      low = math.max(low, k)
      if k == n or high - low <= 1 or goal - loss <= CLOSE * goal then break end
    else
      if k <= high then above = {k = k, kl = result.kl} end
      high = math.min(high, k)
      if high - low <= 1 then break end
    end
  end
  -- What follows is nearer to the plan that was found than to one beyond the goal.
  if best.result and best.result.kl > 0 and harm[best.k] > 0 then scale.factor = best.result.kl / harm[best.k] end
  return best
end

-- What the certificate's standard error will be on so many windows (nil: of all its part), from the interval on the search part.
local function standard_error(moec, result, windows)
  return (result.loss_high - result.loss) / 1.645 * math.sqrt(moec.parts.search / (windows or moec.parts.certificate))
end

-- What the plans of the sequence expect to lose, from the safest on.
local function goals(max_loss, se)
  local result = {SAFE_SHARE * max_loss}
  for _, margin in ipairs(MARGINS) do
    -- Where the certificate is too noisy for such margins, shares of the target take their place.
    result[#result + 1] = math.max(max_loss - margin * se, max_loss * (1 - margin / 5) * 0.8)
  end
  table.sort(result)
  return result
end

-- ---- exchanges ----

-- A plan by exchanges (lua/modules/exchange.lua) whose KL on the search part is that of the goal, where it is smaller than `than`
-- bytes and worth it.
local function find_exchange(moec, steps, top, harm, kl, scale, than)
  local budget, best = kl / scale.factor, nil
  for _ = 1, EXCHANGE_EVALUATIONS do
    local k = longest(harm, #steps, budget)
    local plan = assignment.copy(top)
    for _, step in ipairs(exchange.best(steps, k, budget, WORTH_EXCHANGING * than / 5)) do set(plan, step.unit, step.name) end
    local bytes = moec.size(plan)
    if bytes > (best and best.bytes - 1 or than * (1 - WORTH_EXCHANGING)) then break end
    local result = moec.evaluate(plan)
    moec.log(string.format("exchanging large steps for small ones (%s): loss %s, KL %.5f, at most %.5f",
      target.bytes(bytes), target.percent(result.loss), result.kl, kl))
    local fits = result.kl <= kl * (1 + CLOSE)
    if fits then best = {plan = plan, bytes = bytes} end
    if fits and result.kl >= kl * (1 - 5 * CLOSE) then break end
    budget = budget * (kl / result.kl) * (1 - CLOSE)
  end
  return best and best.plan
end

-- ---- one plan of projections for all experts ----

-- The smallest plan under the model whose experts are all alike, within the same harm: the dense matrices take the rest.
local function best_alike(moec, variants, steps, top, budget)
  local names, projections, best = variants.names, moec.model.projections, nil
  local dense_steps, experts = {}, {}
  for _, step in ipairs(steps) do if step.unit.dense then dense_steps[#dense_steps + 1] = step end end
  for _, projection in ipairs(projections) do
    experts[projection] = {}
    for _, name in ipairs(names) do
      local sum = 0
      for layer = 1, moec.model.layers do
        for expert = 1, moec.model.experts do sum = sum + variants.harm.experts[layer][expert][projection][name] end
      end
      experts[projection][name] = sum
    end
  end
  local base = 0
  for index = 1, #top.dense do base = base + variants.harm.dense[index][top.dense[index]] end
  local dense_harm = sums(dense_steps)
  local choice = {}
  local function try(at, harm)
    if harm > budget then return end
    if at <= #projections then
      for _, name in ipairs(names) do
        choice[projections[at]] = name
        try(at + 1, harm + experts[projections[at]][name])
      end
      return
    end
    local plan = prefix(dense_steps, top, longest(dense_harm, #dense_steps, budget - harm))
    for layer = 1, moec.model.layers do
      for expert = 1, moec.model.experts do
        plan[layer][expert] = {}
        for _, projection in ipairs(projections) do plan[layer][expert][projection] = choice[projection] end
      end
    end
    local bytes = moec.size(plan)
    if not best or bytes < best.bytes then best = {plan = plan, bytes = bytes} end
  end
  try(1, base)
  return best
end

-- Says what mixing by expert gains over it at the same expected loss; returns it where it is smaller, which happens where the
-- model of harm is wrong about a variant that many experts take.
local function compare_alike(moec, variants, steps, top, harm, k, scale, mixed)
  local budget, best, kl = harm[k], nil, harm[k] * scale.factor
  for _ = 1, ALIKE_EVALUATIONS do
    local alike = best_alike(moec, variants, steps, top, budget)
    if not alike then break end
    local result = moec.evaluate(alike.plan)
    local fits = result.kl <= kl * (1 + CLOSE)
    if fits and (not best or alike.bytes < best.bytes) then best = alike end
    if fits then break end
    -- A little less than the ratio asks for: plans come in steps.
    budget = budget * (kl / result.kl) * (1 - 3 * CLOSE)
  end
  if not best then return nil end
  local bytes = moec.size(mixed)
  local gain = 1 - bytes / best.bytes
  moec.log(string.format("one plan of projections for all experts (%s) has %s at this loss; mixing by expert has %s, %s %s",
    assignment.describe(best.plan), target.bytes(best.bytes), target.bytes(bytes), target.percent(math.abs(gain)),
    gain >= 0 and "less" or "more"))
  if gain < WORTH_MIXING then
    moec.log(string.format("mixing bitwidths by expert gains %s here: on this model one plan for all experts does nearly as well",
      target.percent(gain)))
  end
  return gain < 0 and best.plan or nil
end

-- ---- the policy ----

local function by_size(moec, steps, top)
  local k = target.first(#steps, function(k) return moec.size(prefix(steps, top, k)) <= moec.max_size end)
  if not k then
    return nil, string.format("even the smallest variants have %d bytes, more than --max-size", moec.size(prefix(steps, top, #steps)))
  end
  return prefix(steps, top, k)
end

return function(moec)
  if not moec.profile then return nil, "needs a --profile or --data to measure with" end
  if not moec.max_loss and not moec.max_size then return nil, "give --max-loss or --max-size" end
  local variants = moec.variants()
  local steps, top = all_steps(moec, variants)
  if not moec.max_loss then return by_size(moec, steps, top) end

  local harm, scale = sums(steps), new_scale()
  local found = find_prefix(moec, steps, top, harm, moec.max_loss, scale)
  if not found.result then
    local result = moec.evaluate(top)
    if result.loss > moec.max_loss then return nil, "not even the safest variants meet the loss target" end
    found.result = result
  end
  local windows = found.result.certificate_windows
  if found.result.kl > 0 and moec.parts.select > 0 and not moec.loss_tolerance then
    local select = moec.evaluate(prefix(steps, top, found.k), "select")
    if select.kl > 0 then
      correct(scale, moec.parts, found.result, select)
      windows = select.certificate_windows or windows
      moec.log(string.format("on the select part the same plan has a loss of %s, KL %.5f: %.3f of the search part's",
        target.percent(select.loss), select.kl, select.kl / found.result.kl))
    end
  end

  local sequence, last, kl, last_kl = {top}, 0, 0, nil
  for _, goal in ipairs(goals(moec.max_loss, standard_error(moec, found.result, windows))) do
    local k
    if scale.kl > 0 then
      kl = kl_of_loss(scale, goal)
      k = longest(harm, #steps, kl / scale.factor)
    else
      k = math.floor(found.k * goal / moec.max_loss)
    end
    if k > last then
      sequence[#sequence + 1] = prefix(steps, top, k)
      last, last_kl = k, kl
    end
  end
  local bytes = moec.size(sequence[#sequence])
  local compares = not moec.pair_share and scale.kl > 0 -- bundles, of which KL is known
  if compares then
    moec.log(string.format("under this model no plan of these variants that loses as little is smaller than %s",
      target.bytes(bytes - (steps[last + 1] and math.ceil(steps[last + 1].bytes) or 0))))
    local exchanged = find_exchange(moec, steps, top, harm, kl, scale, bytes)
    if exchanged then sequence[#sequence + (last_kl == kl and 0 or 1)] = exchanged end
  end
  if moec.max_size and moec.size(sequence[#sequence]) > moec.max_size then
    return nil, string.format("the smallest plan found within the loss target has %d bytes, more than --max-size",
      moec.size(sequence[#sequence]))
  end
  local alike = compares and compare_alike(moec, variants, steps, top, harm, last, scale, sequence[#sequence])
  if alike then
    if #sequence == MAX_SEQUENCE then sequence[#sequence] = nil end
    sequence[#sequence + 1] = alike
  end
  return {sequence = sequence}
end
