-- What a prefix of steps leaves unspent. Steps are sorted by harm for each byte that they save: {unit = {index =}, order =, harm =,
-- bytes =}, where `order` counts the steps of a unit from 1. A prefix ends before the first step that is too large, such as a whole
-- embedding. Taking or undoing one such step, undoing the dearest steps until the harm is within the budget, and filling up with
-- what fits makes a smaller plan. A plan is how many steps it has taken of each unit; the steps of a unit are taken in their order.
local exchange = {}

-- The steps of each unit, and how many of them are among the first k; the harm of these.
local function begin(steps, k)
  local of_unit, taken, harm = {}, {}, 0
  for i, step in ipairs(steps) do
    local unit = step.unit.index
    for index = #of_unit + 1, unit do of_unit[index], taken[index] = {}, 0 end
    of_unit[unit][step.order] = step
    if i <= k then taken[unit], harm = step.order, harm + step.harm end
  end
  return {steps = steps, k = k, of_unit = of_unit, taken = taken, harm = harm}
end

-- The plan with `order` steps of one unit, and the bytes that it saves beside the prefix; nil where its harm is over the budget.
-- Without a unit only what fits is added.
local function change(from, unit, order, budget)
  local taken, harm, saved = {}, from.harm, 0
  for index, n in ipairs(from.taken) do taken[index] = n end
  local function take(step) taken[step.unit.index], harm, saved = step.order, harm + step.harm, saved + step.bytes end
  local function undo(step) taken[step.unit.index], harm, saved = step.order - 1, harm - step.harm, saved - step.bytes end
  if unit then
    for i = taken[unit] + 1, order do take(from.of_unit[unit][i]) end
    for i = taken[unit], order + 1, -1 do undo(from.of_unit[unit][i]) end
  end
  for i = from.k, 1, -1 do
    if harm <= budget then break end
    local step = from.steps[i]
    if step.unit.index ~= unit and taken[step.unit.index] == step.order then undo(step) end
  end
  if harm > budget then return nil end
  for _, step in ipairs(from.steps) do
    if step.unit.index ~= unit and taken[step.unit.index] == step.order - 1 and harm + step.harm <= budget then take(step) end
  end
  return {taken = taken, saved = saved}
end

-- The last step that is taken of each unit, in the smallest plan that changes the first k steps in this way and whose harm is
-- within the budget; only units with steps of at least `least` bytes are changed first. The harm of k steps is within the budget.
function exchange.best(steps, k, budget, least)
  local from = begin(steps, k)
  local best = change(from, nil, nil, budget) or {taken = from.taken, saved = 0}
  for unit, of_unit in ipairs(from.of_unit) do
    for order = 0, #of_unit do
      if order ~= from.taken[unit] and of_unit[math.max(order, 1)].bytes >= least then
        local found = change(from, unit, order, budget)
        if found and found.saved > best.saved then best = found end
      end
    end
  end
  local chosen = {}
  for unit, n in ipairs(best.taken) do
    if n > 0 then chosen[#chosen + 1] = from.of_unit[unit][n] end
  end
  return chosen
end

return exchange
