-- Texts that hold figures: "{point.loss:2%} % at {#sizes} sizes". A field is an expression of Lua over the values at
-- hand and the functions below; behind the colon stand its decimals, with + for a sign, and what it is told in: % for
-- a share as per cent, K for bytes as KiB, k as kilobytes, M as megabytes.
local VIEW, RAW = {}, {}
local UNITS = { [""] = 1, ["%"] = 100, K = 1 / 1024, k = 1e-3, M = 1e-6 }
local template = { NAN = 0 / 0, library = { math = math, tonumber = tonumber } }

local compiled = {}
local current = {}       -- the values at hand where functions of expressions are called
local is_lacking = false -- whether a value was asked for that was not measured

-- A value as expressions see it: in tables, too, what is not there is not a number, and noticed.
local function view(value)
  if getmetatable(value) == VIEW then return value end
  if type(value) == "table" then return setmetatable({ [RAW] = value }, VIEW) end
  if value ~= nil and value == value then return value end
  is_lacking = true
  return template.NAN
end
function VIEW.__index(self, name) return view(rawget(self, RAW)[name]) end
function VIEW.__len(self) return #rawget(self, RAW) end

-- Nor is there anything in what is not there.
debug.setmetatable(template.NAN, { __index = function() return view() end, __len = function() return view() end })

-- Values by name, searched for in one table after the other.
function template.scope(...)
  local tables = { ... }
  return setmetatable({}, {
    __index = function(_, name)
      for i = 1, #tables do
        local value = tables[i][name]
        if value ~= nil then return view(value) end
      end
      return view(template.library[name])
    end,
  })
end

function template.evaluate(expression, scope)
  local outer = current
  compiled[expression] = compiled[expression] or assert(load("local _ENV = ...; return " .. expression))
  current = scope
  local value = compiled[expression](scope)
  current = outer
  return value
end

-- Runs a function; returns what it returns, and whether nothing lacked.
function template.whole(run, ...)
  is_lacking = false
  local value = run(...)
  return value, not is_lacking
end

local function fill_field(field, scope)
  local expression, sign, decimals, unit = field:match("^(.*):(%+?)(%d)([%%KkM]?)$")
  local value = template.evaluate(expression or field, scope)
  if value ~= value then return "–" end
  if expression then return ("%" .. sign .. "." .. decimals .. "f"):format(UNITS[unit] * value) end
  return math.type(value) == "float" and ("%g"):format(value) or tostring(value)
end

-- A text, or { condition, text, text otherwise }, with its fields; a dash for what was not measured.
function template.fill(text, scope)
  if type(text) == "table" then text = template.evaluate(text[1], scope) and text[2] or text[3] end
  return ((text or ""):gsub("%b{}", function(field) return fill_field(field:sub(2, -2), scope) end))
end

-- The same, but nothing else than the dash.
function template.cell(text, scope)
  local filled, is_whole = template.whole(template.fill, text, scope)
  return is_whole and filled or "–"
end

-- ---- functions of expressions ----

local library = template.library

-- Values of an expression over a list.
local function each(list, expression)
  local values = {}
  for i, one in ipairs(type(list) == "table" and rawget(list, RAW) or {}) do
    values[i] = template.evaluate(expression, template.scope(one, current))
  end
  return values
end

-- The item of a list whose value is largest.
function library.top(list, expression)
  local values, best = each(list, expression), 1
  for i, value in ipairs(values) do best = value > values[best] and i or best end
  return list[best]
end

function library.most(list, expression) return math.max(-math.huge, table.unpack(each(list, expression))) end
function library.least(list, expression) return math.min(math.huge, table.unpack(each(list, expression))) end

local function sum(list, expression)
  local total = 0
  for _, value in ipairs(each(list, expression)) do total = total + value end
  return total
end
function library.mean(list, expression) return sum(list, expression) / #list end
function library.count(list, condition) return sum(list, "(" .. condition .. ") and 1 or 0") end

-- Pearson's, of two expressions.
function library.correlation(list, one, other) return moec.correlation(each(list, one), each(list, other)) end

-- How many times as fast a token of one is as the other's; by how much a number is less than another, as a share.
function library.times(one, other) return other.tpot_ms_median / one.tpot_ms_median end
function library.less(one, other) return 1 - one / other end

-- A point's loss with its interval, or this alone, in per cent.
function library.interval(point) return ("%.2f (%s)"):format(100 * point.loss, library.range(point)) end
function library.range(point) return ("%.2f to %.2f"):format(100 * point.loss_low, 100 * point.loss_high) end

-- Texts of the items that meet a condition, behind each other.
function library.list(list, condition, text, separator)
  local texts = {}
  for i, is_so in ipairs(each(list, condition)) do
    if is_so then table.insert(texts, template.fill(text, template.scope(rawget(list, RAW)[i], current))) end
  end
  return table.concat(texts, separator or "; ")
end

return template
