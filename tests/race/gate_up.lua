-- Gate and up of every expert at --bits in the codec of moec.variants(), all else as the checkpoint has it: what this codec
-- loses by itself. Give --dense-bits 16, and a --max-loss that does not matter.
local assignment = require "assignment"

return function(moec)
  if not moec.profile or not moec.bits then return nil, "needs data and --bits" end
  local variants, name = moec.variants(), nil
  for _, each in ipairs(variants.names) do
    if variants.bits[each] == moec.bits then name = name or each end
  end
  if not name then return nil, string.format("there is no variant of %d bits", moec.bits) end
  local plan = assignment.uniform(moec, 16)
  for layer = 1, moec.model.layers do
    for expert = 1, moec.model.experts do plan[layer][expert] = {gate = name, up = name, down = 16} end
  end
  local result = moec.evaluate(plan)
  moec.log(string.format("gate and up in %s: loss %.3f %% on the search part", name, 100 * result.loss))
  return {sequence = {plan}}
end
