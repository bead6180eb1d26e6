-- One plan of projections for all experts, the smallest that meets --max-loss: gate and up in one variant of moec.variants(),
-- down in one of as many bits or more, the embedding and all other dense matrices in one each. What a plan that differs from
-- expert to expert is compared with. The next larger plans come first in the sequence, so that the certificate has a choice.
local assignment = require "assignment"
local target = require "target"

-- The variant of a list whose bits are the fewest that reach `bits`.
local function variant(names, bits_of, bits)
  local best
  for _, name in ipairs(names) do
    if bits_of[name] >= bits and (not best or bits_of[name] < bits_of[best]) then best = name end
  end
  return best
end

local function plan(moec, variants, gate_up, down, dense, embedding)
  local made = assignment.uniform(moec, 16)
  local narrow = variant(variants.names, variants.bits, gate_up)
  local wide = variant(variants.names, variants.bits, down)
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do made[layer][expert] = {gate = narrow, up = narrow, down = wide} end
  end
  made.dense = {}
  for i, matrix in ipairs(variants.dense) do
    made.dense[i] = variant(matrix.variants, variants.bits, matrix.layer and dense or embedding)
  end
  return made
end

return function(moec)
  if not moec.profile or not moec.max_loss then return nil, "needs data and --max-loss" end
  local variants, plans = moec.variants(), {}
  for _, pair in ipairs {{2, 2}, {2, 3}, {2, 4}, {3, 3}, {3, 4}, {4, 4}, {4, 5}} do
    for _, dense in ipairs {{2, 3}, {3, 3}, {3, 4}, {4, 4}, {4, 6}, {6, 6}, {8, 8}} do
      local made = plan(moec, variants, pair[1], pair[2], dense[1], dense[2])
      plans[#plans + 1] = {made = made, bytes = moec.size(made), name = string.format("gate and up %d, down %d, dense %d, embedding %d",
        pair[1], pair[2], dense[1], dense[2])}
    end
  end
  table.sort(plans, function(a, b) return a.bytes < b.bytes end)
  local sequence = {}
  for _, each in ipairs(plans) do
    local result = moec.evaluate(each.made)
    moec.log(string.format("%s: %d bytes, loss %s", each.name, each.bytes, target.percent(result.loss)))
    if result.accepted then table.insert(sequence, 1, each.made) end
    if #sequence == 4 then break end
  end
  if #sequence == 0 then return nil, "no plan of projections meets the target" end
  return {sequence = sequence}
end
