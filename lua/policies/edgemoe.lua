-- edgemoe: the procedure of EdgeMoE (modules/two_widths.lua), with experts ranked by divergence.
--
-- The paper ranks by the change of accuracy. On a few dozen windows the change of perplexity of one expert is mostly
-- luck: those come first whose damage happens to help on the very windows that the search looks at, and the promise is
-- then missed on others. The divergence from the original (KL) says the same in the mean with far less noise, so it ranks
-- here. edgemoe-literal ranks as the paper does.
local two_widths = require "two_widths"

return function(moec)
  return two_widths.search(moec, function(layer, expert, bits) return moec.profile.kl[layer][expert][bits] end)
end
