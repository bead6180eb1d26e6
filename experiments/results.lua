-- What the scripts of an experiment left in a folder: NAME.json of each measurement, profiles, and what stands in them
-- by paths. "ours-2:" is a measurement, "ours-2:loss" a value of it, "bench:rows[1].hit_rate" one of its first row,
-- "kernels:experts[bits=4]" an item by a value, "bench:rows[cache 25 550]" the row of moec bench of that mode, with so
-- much memory in per cent, on storage of so many MB/s. "profile.h5:rank/loss[cut, 2]" is what a study has there, and
-- "routes/*" a list of a folder's measurements.
local results = {}
results.__index = results

-- `derive`, where it is given, adds to a measurement what follows from it.
function results.open(folder, derive)
  return setmetatable({ folder = folder, derive = derive, kept = {} }, results)
end

-- A measurement or a profile ("profile.h5"), nil where there is none.
function results:load(name)
  local path = self.folder .. "/" .. name
  if self.kept[name] == nil and name:find("%.h5$") then self.kept[name] = moec.profile(path) or false end
  if self.kept[name] == nil then
    local root = moec.json(path .. ".json") or false
    if root then root.file = name:match("[^/]*$") end
    if root and self.derive then self.derive(root) end
    self.kept[name] = root
  end
  return self.kept[name] or nil
end

-- All of a folder in the folder, by name.
function results:list(folder)
  local list = {}
  for _, entry in ipairs(moec.names(self.folder .. "/" .. folder)) do
    local name = entry:match("^([^.].*)%.json$")
    if name then table.insert(list, self:load(folder .. "/" .. name)) end
  end
  return list
end

-- Whether a number is what a text begins with, as "550 MB/s".
local function begins(text, number)
  local leading = tonumber(tostring(text):match("^[%d.]+"))
  return leading and number and math.abs(leading - number) < 1e-6
end

-- The first row of moec bench that has a time. Of a mode without a buffer any memory will do; memory may be "first" for
-- the first that a row names; a rate may be nil.
local function row_of(rows, mode, memory, rate)
  local first
  for _, row in ipairs(rows) do
    first = first or row.memory
    local is_there = not row.memory or row.memory == (memory == "first" and first or memory)
      or begins(row.memory, tonumber(memory))
    local is_its = row.mode == mode and is_there and (not rate or begins(row.storage, rate))
    if is_its and row.tpot_ms_median then return row end
  end
end

-- The item of a list by its place, by values of it, or as a row of moec bench.
local function pick(list, words)
  local mode, memory, rate = words:match("^([^%s=]+) (%S+) ?(%S*)$")
  if mode then return row_of(list, mode, memory, tonumber(rate)) end
  for _, item in ipairs(words:find("=") and list or {}) do
    local is_it = true
    for key, value in words:gmatch("(%S+)=(%S+)") do
      is_it = is_it and (item[key] == value or item[key] == tonumber(value))
    end
    if is_it then return item end
  end
  return list[tonumber(words)]
end

-- What stands at a path; nil where it was not measured.
function results:at(path)
  if path:find("/%*$") then return self:list(path:sub(1, -3)) end
  local name, keys = path:match("^(.*):(.*)$")
  local node, at = self:load(name), 1
  local study, places = keys:match("^(.-/.-)%[(.*)%]$")
  if study then
    local words = {}
    for word in places:gmatch("[^, ][^,]*") do table.insert(words, word) end
    return node and moec.study(node.handle, study, table.unpack(words))
  end
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

return results
