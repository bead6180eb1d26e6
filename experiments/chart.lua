-- Charts, as entries of page.lua describe them, in the numbers that are drawn.
local template = require "template"

local chart = {}

-- The place of a category in a list, which it is added to where it is new.
local function place_of(category, list)
  for place, known in ipairs(list) do
    if known == category then return place - 1 end
  end
  table.insert(list, category)
  return #list - 1
end

-- Series by the names that records have after entry.by, with a point for each record; adds categories of x.
local function series_of(entry, records, record, sample, categories)
  local list, by_name = {}, {}
  for _, each in ipairs(records) do
    local scope = template.scope(each, record, sample)
    local name = template.fill(entry.by or "", scope)
    local x = template.evaluate(entry.x[3], scope)
    local point = { type(x) == "string" and place_of(x, categories) or x, template.evaluate(entry.y[3], scope) }
    if entry.low then point[3], point[4] = template.evaluate(entry.low, scope), template.evaluate(entry.high, scope) end
    if not by_name[name] then
      by_name[name] = { name = name, has_interval = entry.low ~= nil }
      table.insert(list, by_name[name])
    end
    table.insert(by_name[name], point)
  end
  return list
end

-- Lines at a value, { expression, word }.
local function lines_of(lines, scope)
  local list = {}
  for l, line in ipairs(lines or {}) do list[l] = { template.evaluate(line[1], scope), line[2] } end
  return list
end

-- What is drawn of an entry with these values.
function chart.describe(entry, name, values, scope, record, sample)
  local x, y = setmetatable({ categories = {} }, { __index = entry.x }), setmetatable({}, { __index = entry.y })
  y[2] = template.fill(entry.y[2], scope)
  return { kind = entry.kind, name = name, title = template.fill(entry.title, scope), source = entry.source,
    caption = template.words(entry.caption, values, scope), has_value_labels = entry.labels, x = x, y = y,
    series = series_of(entry, values.records, record, sample, x.categories),
    rules = lines_of(entry.rules, scope), uprights = lines_of(entry.uprights, scope) }
end

return chart
