-- Texts that hold figures: "{point.loss:2%} % at {#sizes} sizes". A field is an expression of Lua over the values at
-- hand and the functions below; behind the colon stand its decimals, with + for a sign, with % for a share as per cent.
local VIEW = {}
local template = { NAN = 0 / 0, library = { math = math } }

local compiled = {}
local RAW = {}
local current = {}       -- the values at hand where functions of expressions are called
local is_lacking = false -- whether a value was asked for that was not measured

function template.is_finite(value)
  return type(value) == "number" and value - value == 0
end

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

-- Whether a value was measured.
function template.is_there(value) return value == value end

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
  local expression, sign, decimals, percent = field:match("^(.*):(%+?)(%d)(%%?)$")
  local value = template.evaluate(expression or field, scope)
  if value ~= value then return "–" end
  if expression then return ("%" .. sign .. "." .. decimals .. "f"):format(percent == "%" and 100 * value or value) end
  return math.type(value) == "float" and ("%g"):format(value) or tostring(value)
end

-- The text with its fields; a dash for what was not measured.
function template.fill(text, scope)
  return (text:gsub("%b{}", function(field) return fill_field(field:sub(2, -2), scope) end))
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

function library.mean(list, expression)
  local sum = 0
  for _, value in ipairs(each(list, expression)) do sum = sum + value end
  return sum / #list
end

function library.count(list, condition)
  local n = 0
  for _, is_so in ipairs(each(list, condition)) do n = n + (is_so and 1 or 0) end
  return n
end

-- Pearson's, of two expressions.
function library.correlation(list, one, other)
  return moec.correlation(each(list, one), each(list, other))
end

-- A point's loss with its interval, in per cent.
function library.interval(point)
  return ("%.2f (%.2f to %.2f)"):format(100 * point.loss, 100 * point.loss_low, 100 * point.loss_high)
end

-- Texts of the items that meet a condition, behind each other.
function library.list(list, condition, text, separator)
  local texts = {}
  for i, is_so in ipairs(each(list, condition)) do
    if is_so then table.insert(texts, template.fill(text, template.scope(rawget(list, RAW)[i], current))) end
  end
  return table.concat(texts, separator or "; ")
end

-- A text, or what a function of the values returns, filled.
function template.words(text, values, scope)
  if type(text) == "function" then text = text(values) end
  return template.fill(text or "", scope)
end

return template
