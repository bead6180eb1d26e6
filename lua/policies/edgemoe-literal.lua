-- edgemoe-literal: the procedure of EdgeMoE (modules/two_widths.lua) as the paper has it: an expert is as important as what
-- the model loses when that expert alone is at the lowest bitwidth. edgemoe says what is wrong with that on little data.
local two_widths = require "two_widths"

return function(moec)
  return two_widths.search(moec, function(layer, expert, bits) return moec.profile.loss[layer][expert][bits] end)
end
