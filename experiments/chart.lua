-- Charts, as they stand among the entries of a page, in the numbers that are drawn. A chart has a kind ("lines",
-- "points", "bars"), a title, a caption and its source; axes have a column's name, a label and an expression, whose
-- strings are categories, `has_zero` and `is_whole`; `has_interval` shows that of the loss; `rules` and `uprights` are
-- lines at an expression, with a word; `by` names series; `labels` stand at the values.
local template = require "template"

local chart = {}

-- The place of a category in a list, which also has the places by name, and which it is added to where it is new.
local function place_of(category, list)
  if not list[category] then
    table.insert(list, category)
    list[category] = #list - 1
  end
  return list[category]
end

-- Series by the names that records have after entry.by, with a point for each record; adds categories of x.
local function series_of(entry, records, values, categories)
  local list, by_name = {}, {}
  for _, each in ipairs(records) do
    local scope = template.scope(each, values)
    local name = template.fill(entry.by, scope)
    local x = template.evaluate(entry.x[3], scope)
    local point = { type(x) == "string" and place_of(x, categories) or x, template.evaluate(entry.y[3], scope) }
    if entry.has_interval then point[3], point[4] = 100 * scope.loss_low, 100 * scope.loss_high end
    if not by_name[name] then
      by_name[name] = { name = name, has_interval = entry.has_interval }
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

-- What is drawn of an entry of these records, with the values of a scope.
function chart.describe(entry, name, records, scope)
  local function axis(of, categories)
    return { of[1], template.fill(of[2], scope), has_zero = of.has_zero, is_whole = of.is_whole,
      categories = categories }
  end
  local categories = {}
  return { kind = entry.kind, name = name, title = template.fill(entry.title, scope),
    source = template.fill(entry.source, scope), caption = template.fill(entry.caption, scope),
    has_value_labels = entry.labels, series = series_of(entry, records, scope, categories),
    x = axis(entry.x, categories), y = axis(entry.y), rules = lines_of(entry.rules, scope),
    uprights = lines_of(entry.uprights, scope) }
end

return chart
