-- What the scripts of an experiment left in a folder: NAME.json of each measurement, profiles, and what stands in them
-- by paths. "ours-2:" is a measurement, "ours-2:loss" a value of it, "bench:rows[1].hit_rate" one of its first row,
-- "kernels:experts[bits=4]" an item by a value, "bench:rows[cache 25 550]" the row of moec bench of that mode, with so
-- much memory in per cent, on storage of so many MB/s. "profile.h5:rank/loss[cut, 2]" is what a study has there, and
-- "routes/*" a list of a folder's measurements.
local template = require "template"

local results = {}
results.__index = results

-- `derive`, where it is given, adds to a measurement what follows from it.
function results.open(folder, derive)
  return setmetatable({ folder = folder, derive = derive, kept = {} }, results)
end

local function read(self, name)
  local path = self.folder .. "/" .. name
  if name:find("%.h5$") then return moec.profile(path) end
  local root = moec.json(path .. ".json")
  if root then root.file = name:match("[^/]*$") end
  if root and self.derive then self.derive(root) end
  return root
end

-- A measurement or a profile ("profile.h5"), nil where there is none.
function results:load(name)
  if self.kept[name] == nil then self.kept[name] = read(self, name) or false end
  return self.kept[name] or nil
end

-- All of a folder in the folder, by name.
function results:list(folder)
  local list = {}
  for i, name in ipairs(moec.names(self.folder .. "/" .. folder, ".json")) do
    list[i] = self:load(folder .. "/" .. name)
  end
  return list
end

local function is_close(text, number)
  local leading = tonumber(tostring(text):match("^[%d.]+"))
  return leading ~= nil and math.abs(leading - number) < 1e-6
end

-- The first row of moec bench that has a time. Of a mode without a buffer any memory will do; memory may be "first" for
-- the first that a row names; a rate may be nil.
local function row_of(rows, mode, memory, rate)
  local first
  for _, row in ipairs(rows) do
    first = first or row.memory
    local is_there = not row.memory or row.memory == (memory == "first" and first or memory)
      or tonumber(memory) and is_close(row.memory, tonumber(memory))
    local is_as_fast = not rate or is_close(row.storage, rate)
    if row.mode == mode and is_there and is_as_fast and template.is_finite(row.tpot_ms_median) then return row end
  end
end

local function pick(list, words)
  local key, value = words:match("^(%w+)=(.*)$")
  for _, item in ipairs(key and list or {}) do
    if item[key] == value or item[key] == tonumber(value) then return item end
  end
  local mode, memory, rate = words:match("^(%S+) (%S+) ?(%S*)$")
  return mode and row_of(list, mode, memory, tonumber(rate)) or list[tonumber(words)]
end

local function study_value(profile, keys)
  local study, places = keys:match("^(.-)%[(.*)%]$")
  local words = {}
  for word in places:gmatch("[^,]+") do table.insert(words, (word:gsub("^ ", ""))) end
  return moec.study(profile.handle, study, table.unpack(words))
end

-- What stands at a path; nil where it was not measured.
function results:at(path)
  if path:find("/%*$") then return self:list(path:sub(1, -3)) end
  local name, keys = path:match("^(.*):(%a.*)$")
  if not name then name, keys = path:match("^(.*):$"), "" end
  local node, at = self:load(name), 1
  if node and keys:find("/") then return study_value(node, keys) end
  while type(node) == "table" and at <= #keys do
    local words, after = keys:match("^%[(.-)%]%.?()", at)
    if words then
      node = pick(node, words)
    else
      words, after = keys:match("^([^.%[]+)%.?()", at)
      node = node[words]
    end
    at = after
  end
  if at > #keys then return node end
end

-- A list of every combination of named lists: cross { "prompt", { 16, 128 }, "rate", { 550, 50 } } has prompt and rate.
function results.cross(lists)
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
-- that meet the expression spec.where, with what stands at the paths of spec.at and of spec.may by their names, and
-- with the constants, or functions of all that, of spec.with. Items that lack something of spec.at are left out. What
-- an item lacks it has from its `row`, if that is one of the names.
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
function results.value(what, sample, record)
  if type(what) == "string" then return sample.results:at(template.fill(what, template.scope(record, sample))) end
  if type(what) == "function" then return what(sample, record) end
  local all = {}
  for _, one in ipairs(what) do
    local part = results.value(one, sample, record) or {}
    table.move(part, 1, #part, #all + 1, all)
  end
  if #what > 0 then return all end
  local list = join(sample, what, record)
  return what.is_steps and steps_of(list) or list
end

-- A list, that of this name in the sample, or none.
function results.each(what, sample) return type(what) == "string" and sample[what] or what or {} end

-- Values by name; what is not there, and an empty list, are not numbers.
function results.values(of, sample, record)
  local values = {}
  for name, what in pairs(of or {}) do
    local value = results.value(what, sample, record)
    local is_there = value ~= nil and (type(value) ~= "table" or next(value) ~= nil)
    if is_there then values[name] = value else values[name] = template.NAN end
  end
  return values
end

return results
