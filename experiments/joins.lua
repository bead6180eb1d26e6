-- Lists of what was measured, and what stands at the paths of results.lua beside each item of them.
local template = require "template"

local joins = {}

-- A list of every combination of named lists, and of items where they are given: those of
-- cross { "prompt", { 16, 128 }, "rate", { 550, 50 } } have prompt and rate.
function joins.cross(lists, items)
  local all = items or { {} }
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
  local function take(values)
    for name, what in pairs(values or {}) do
      if type(what) == "string" then what = template.fill(what, scope) end
      joined[name] = joins.value(what, sample, item, record)
      is_whole = is_whole and joined[name] ~= nil
    end
  end
  take(spec.at)
  if not is_whole then return nil end
  take(spec.may)
  for name, what in pairs(spec.with or {}) do joined[name] = what end
  local row = joined.row or {}
  setmetatable(joined, { __index = function(_, name)
    if item[name] ~= nil then return item[name] end
    return row[name]
  end })
  local all = template.scope(joined, record, sample)
  for name, expression in pairs(spec.let or {}) do joined[name] = template.evaluate(expression, all) end
  if not spec.where or template.evaluate(spec.where, all) then return joined end
end

-- Sorts by rising values of a field; what is equal stays in its order.
function joins.sort(list, name)
  local place = {}
  for i, one in ipairs(list) do place[one] = i end
  table.sort(list, function(a, b) return a[name] < b[name] or a[name] == b[name] and place[a] < place[b] end)
end

-- Whether that is a value as joins.value has it, not a list of items.
local function is_value(what)
  return type(what) ~= "table" or what.over ~= nil or what[1] ~= nil and is_value(what[1])
end

-- Items of spec.over, a value, the name of a list in the sample, or the items themselves, with the values of
-- spec.at and of spec.may by their names, with the constants of spec.with, and with the expressions of spec.let, that
-- meet the expression spec.where. Items that lack something of spec.at are left out. What an item lacks it has from its
-- `row`, if that is one of the names. The list is in the order of the field spec.by; with `is_steps` it has pairs of
-- what follows each other instead, { from, to }.
local function join(sample, spec, record)
  local list, over = {}, spec.over
  if type(over) == "string" then over = sample[over] or over end
  if is_value(over) then over = joins.value(over, sample, record) end
  for _, item in ipairs(over or {}) do list[#list + 1] = joined_with(item, sample, spec, record) end
  if spec.by then joins.sort(list, spec.by) end
  if not spec.is_steps then return list end
  for i = 1, #list do list[i] = list[i + 1] and { from = list[i], to = list[i + 1] } end
  return list
end

-- What was measured: at a path that is filled from the record and the sample, of a function of both (and of the record
-- that a record in a join is of), or a join, or of a list of these one behind the other.
function joins.value(what, sample, record, outer)
  if type(what) == "string" then return sample.results:at(template.fill(what, template.scope(record, sample))) end
  if type(what) == "function" then return what(sample, record, outer) end
  if what.over then return join(sample, what, record) end
  local all = {}
  for _, one in ipairs(what) do
    local part = joins.value(one, sample, record) or {}
    table.move(part, 1, #part, #all + 1, all)
  end
  return all
end

-- A list, that of this name in the sample, or none.
function joins.each(what, sample) return type(what) == "string" and sample[what] or what or {} end

-- Values by name; what is not there, and an empty list, are not numbers.
function joins.values(of, sample, record)
  local values = {}
  for name, what in pairs(of or {}) do
    local value = joins.value(what, sample, record)
    values[name] = (type(value) ~= "table" or next(value) ~= nil) and value or template.NAN
  end
  return values
end

return joins
