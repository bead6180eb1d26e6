-- Lists of what was measured, and what stands at the paths of results.lua beside each item of them.
local template = require "template"

local joins = {}

-- A list of every combination of named lists: cross { "prompt", { 16, 128 }, "rate", { 550, 50 } } has prompt and rate.
function joins.cross(lists)
  local all = { {} }
  for l = 1, #lists, 2 do
    local longer = {}
    for _, item in ipairs(all) do
      for _, value in ipairs(lists[l + 1]) do
        table.insert(longer, setmetatable({ [lists[l]] = value }, { __index = item }))
      end
    end
    all = longer
  end
  return all
end

-- What an item of a join is joined with, nil where it lacks something of spec.at.
local function joined_with(item, sample, spec, record)
  local joined, scope, is_whole = {}, template.scope(item, record, sample), true
  local function take(paths)
    for name, path in pairs(paths or {}) do
      joined[name] = sample.results:at(template.fill(path, scope))
      is_whole = is_whole and joined[name] ~= nil
    end
  end
  take(spec.at)
  if not is_whole then return nil end
  take(spec.may)
  local row = joined.row or {}
  setmetatable(joined, { __index = function(_, name)
    if item[name] ~= nil then return item[name] end
    return row[name]
  end })
  for name, what in pairs(spec.with or {}) do
    if type(what) == "function" then joined[name] = what(joined, sample) else joined[name] = what end
  end
  local all = template.scope(joined, record, sample)
  for name, expression in pairs(spec.let or {}) do joined[name] = template.evaluate(expression, all) end
  return joined
end

-- Items of spec.over, a list, the name of one in the sample, a path, or a function of the sample and of the record,
-- that meet the expression spec.where, with what stands at the paths of spec.at and of spec.may by their names, with
-- the constants, or functions of all that, of spec.with, and with the expressions of spec.let. Items that lack
-- something of spec.at are left out. What an item lacks it has from its `row`, if that is one of the names.
local function join(sample, spec, record)
  local list, over = {}, spec.over
  if type(over) == "string" then
    over = sample[over] or sample.results:at(template.fill(over, template.scope(record, sample))) or {}
  end
  if type(over) == "function" then over = over(sample, record) end
  for _, item in ipairs(over) do
    local joined = joined_with(item, sample, spec, record)
    local is_its = joined and (not spec.where or template.evaluate(spec.where, template.scope(joined, record, sample)))
    if is_its then table.insert(list, joined) end
  end
  return list
end

-- What follows each other in a list, as { from, to }.
local function steps_of(list)
  local steps = {}
  for i = 2, #list do steps[i - 1] = { from = list[i - 1], to = list[i] } end
  return steps
end

-- What was measured: at a path that is filled from the record and the sample, of a function of both, or a join (its
-- steps with `is_steps`), or of a list of these one behind the other.
function joins.value(what, sample, record)
  if type(what) == "string" then return sample.results:at(template.fill(what, template.scope(record, sample))) end
  if type(what) == "function" then return what(sample, record) end
  local all = {}
  for _, one in ipairs(what) do
    local part = joins.value(one, sample, record) or {}
    table.move(part, 1, #part, #all + 1, all)
  end
  if #what > 0 then return all end
  local list = join(sample, what, record)
  return what.is_steps and steps_of(list) or list
end

-- A list, that of this name in the sample, or none.
function joins.each(what, sample) return type(what) == "string" and sample[what] or what or {} end

-- Values by name; what is not there, and an empty list, are not numbers.
function joins.values(of, sample, record)
  local values = {}
  for name, what in pairs(of or {}) do
    local value = joins.value(what, sample, record)
    local is_there = value ~= nil and (type(value) ~= "table" or next(value) ~= nil)
    if is_there then values[name] = value else values[name] = template.NAN end
  end
  return values
end

return joins
