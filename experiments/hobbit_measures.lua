-- What claims and the page about HOBBIT share.
local joins = require "joins"

local measures = {}

measures.MEMORIES = joins.cross { "memory", { 25, 50 } } -- per cent of the experts

-- What was timed beside other systems: precisions as on the paper's two machines.
measures.CASES = joins.cross { "widths", { "16-4", "8-2" }, "prompt", { 16, 128 }, "rate", { 550, 50 } }

-- A prompt in half of the memory, "none", "tokens" or "blocks" deciding, on storage of a rate.
measures.WAY = "blocks-{widths}-times/%s:rows[cache 50 %d]"

-- The tuned eviction beside another, or beside all that the paper compares with, in both memories.
function measures.against(other)
  return { over = joins.cross { "memory", { 25, 50 }, "other", other and { other } or { "random", "lru", "lfu" } },
    at = { tuned = "evictions/tuned-{memory}:rows[1]", theirs = "evictions/policies-{memory}:rows[evict={other}]" } }
end

return measures
