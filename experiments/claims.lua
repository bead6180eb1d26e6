-- Sentences of a paper, and figures to reach, beside what was measured. A claim is a table: where it stands in the
-- paper, the paper's words or what is to be reached, and
--
--   of       what it needs, by name, as joins.value has it
--   let      what follows from these, by name: expressions of template.lua, of each other, too
--   says     what was measured, a text of template.lua with these values
--   holds    the threshold, an expression; without one, or where it is neither true nor false, the claim is shown
--   unless   why it is not so, a text
--
-- Texts may name values of the claim and of the sample, too. A claim without what its threshold needs, or its text
-- where it has none, was not measured. A table with `each`, a list or the name of one in the sample, holds claims that
-- are made for all of it.
local joins = require "joins"
local template = require "template"

local claims = {}

local VERDICTS = { [true] = "yes", [false] = "no" }

local function judge(claim, sample, record)
  local scope
  local let = setmetatable({}, { __index = function(_, name)
    local expression = claim.let and claim.let[name]
    return expression and template.evaluate(expression, scope)
  end })
  scope = template.scope(let, joins.values(claim.of, sample, record), record, claim, sample)
  local ours, is_told = template.whole(template.fill, claim.says, scope)
  local holds, is_measured = nil, is_told
  if claim.holds then holds, is_measured = template.whole(template.evaluate, claim.holds, scope) end
  local verdict = is_measured and (VERDICTS[holds] or "shown") or "not measured"
  return { figure = template.fill(claim[1], scope), paper = template.fill(claim[2], scope), verdict = verdict,
    ours = is_measured and ours or verdict, why = verdict == "no" and template.fill(claim.unless, scope) or "" }
end

-- What was found of a list of claims, in its order.
function claims.judge(list, sample, record, found)
  found = found or {}
  for _, claim in ipairs(list) do
    for _, one in ipairs(joins.each(claim.each, sample)) do claims.judge(claim, sample, one, found) end
    if not claim.each then table.insert(found, judge(claim, sample, record or {})) end
  end
  return found
end

function claims.count(found, verdict)
  local n = 0
  for _, claim in ipairs(found) do n = n + (claim.verdict == verdict and 1 or 0) end
  return n
end

return claims
