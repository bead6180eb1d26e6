-- Assignments: assignment[layer][expert] = bitwidth, or {gate =, up =, down =} with one for each projection; layers and
-- experts counted from 1 (MoE layers only).
local assignment = {}

-- The same bitwidth for every expert.
function assignment.uniform(moec, bits)
  local result = {}
  for layer = 1, moec.model.layers do
    result[layer] = {}
    for expert = 1, moec.model.experts do
      result[layer][expert] = bits
    end
  end
  return result
end

function assignment.copy(source)
  local result = {}
  if source.dense then
    result.dense = {}
    for index, name in pairs(source.dense) do result.dense[index] = name end
  end
  for layer, experts in ipairs(source) do
    result[layer] = {}
    for expert, bits in ipairs(experts) do
      if type(bits) == "table" then bits = {gate = bits.gate, up = bits.up, down = bits.down} end
      result[layer][expert] = bits
    end
  end
  return result
end

-- Every expert as {layer =, expert =, value =}, by rising value(layer, expert); ties by layer, then expert.
function assignment.ranking(moec, value)
  local list = {}
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do
      list[#list + 1] = {layer = layer, expert = expert, value = value(layer, expert)}
    end
  end
  table.sort(list, function(a, b)
    if a.value ~= b.value then return a.value < b.value end
    if a.layer ~= b.layer then return a.layer < b.layer end
    return a.expert < b.expert
  end)
  return list
end

-- Bytes that one expert occupies at each bitwidth, padding included: {[2] = ..., [3] = ...}, relative to the smallest.
function assignment.expert_bytes(moec)
  local experts = moec.model.layers * moec.model.experts
  local sizes, smallest = {}, nil
  for _, bits in ipairs(moec.bitwidths) do
    sizes[bits] = moec.size(assignment.uniform(moec, bits)) / experts
    smallest = smallest or sizes[bits]
  end
  for bits, bytes in pairs(sizes) do sizes[bits] = bytes - smallest end
  return sizes
end

-- "4", or "gate 4, up 3, down 8".
local function name(bits)
  if type(bits) ~= "table" then return bits end
  return (bits.gate and "gate " .. bits.gate .. ", " or "") .. "up " .. bits.up .. ", down " .. bits.down
end

-- How many experts have each bitwidth, as text: "2:40 4:216"; those whose projections have their own at the end.
function assignment.describe(source)
  local count = {}
  for _, experts in ipairs(source) do
    for _, bits in ipairs(experts) do count[name(bits)] = (count[name(bits)] or 0) + 1 end
  end
  local parts = {}
  for bits, n in pairs(count) do parts[#parts + 1] = bits .. ":" .. n end
  return table.concat(parts, " ")
end

return assignment
