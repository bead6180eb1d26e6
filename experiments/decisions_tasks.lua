-- Tasks with all experts at one bitwidth and with decisions: Tables 2 and 3 of Fate, Table 3 of HOBBIT.
local page = require "page"

local tasks = {}

local SIDES = { -- what files are called, and rows
  { "int8", "all experts INT8" }, { "int4", "all experts INT4" }, { "int2", "all experts INT2" },
  { "fate-high", "Fate, faster machine" }, { "fate-low", "Fate, slower machine" },
  { "hobbit-16-4", "HOBBIT, 16 bits and INT4" }, { "hobbit-8-2", "HOBBIT, INT8 and INT2" },
}

local CHANCE = { line = 0.25, mmlu = 0.25, hellaswag = 0.25, piqa = 0.5 } -- what guessing gets; of others nothing

-- The part of a file's name in front of a side's; nil where it is another side's.
local function task_of(file, side)
  return file:sub(-#side - 1) == "-" .. side and file:sub(1, -#side - 2) or nil
end

-- A record of each task and side, the checkpoint's own score first; a task is done where that is better than by chance.
function tasks.records(sample)
  local names, of_task, records = {}, {}, {}
  for _, root in ipairs(sample.tasks) do
    for s, side in ipairs(SIDES) do
      local name = task_of(root.file, side[1])
      if name and not of_task[name] then
        of_task[name] = {}
        table.insert(names, name)
      end
      if name then of_task[name][s] = root end
    end
  end
  for _, name in ipairs(names) do
    local _, any = next(of_task[name])
    local is_done = any.reference - 2 * any.standard_error > (CHANCE[name] or 0)
    table.insert(records, { task = name, experts = is_done and "original" or "original, no better than by chance",
      loss = 0, value = any.reference, reference = any.reference, samples = any.samples })
    for s, side in ipairs(SIDES) do
      local record = { task = name, side = side[1], experts = side[2], is_done = is_done }
      if of_task[name][s] then table.insert(records, setmetatable(record, { __index = of_task[name][s] })) end
    end
  end
  return records
end

-- Records of a side, of the tasks that the checkpoint can do.
function tasks.side(side)
  return function(sample)
    local list = {}
    for _, record in ipairs(tasks.records(sample)) do
      if record.side == side and record.is_done then table.insert(list, record) end
    end
    return list
  end
end

-- What they score, in words.
tasks.SCORES = "{list(tasks, 'true', '{task} {value:1%} instead of {reference:1%} %', ', ')}"

-- The paper's: model, experts, score, points.
local GIVEN = {
  { "MMLU, the paper's Qwen1.5-MoE", "original", "59.6", "–" }, { "", "all experts INT8", "59.6", "0" },
  { "", "all experts INT4", "59.4", "-0.2" }, { "", "all experts INT2", "55.1", "-4.5" },
  { "", "Fate, faster machine", "59.7", "0.1" }, { "", "Fate, slower machine", "58.4", "-1.2" },
  { "GSM8K, the paper's Qwen1.5-MoE", "original", "62.4", "–" }, { "", "Fate, faster machine", "60.2", "-2.2" },
  { "", "Fate, slower machine", "59.9", "-2.5" }, { "GSM8K, the paper's Mixtral-8x7B", "original", "52", "–" },
  { "", "HOBBIT, 16 bits and INT4", "51", "-1" }, { "", "HOBBIT, INT8 and INT2", "51", "-1" },
}

local function given()
  local rows = {}
  for r, row in ipairs(GIVEN) do rows[r] = { row[1], "", row[2], row[3], row[4], "–", "–" } end
  return rows
end

tasks.TABLE = {
  "Fate, Tables 2 and 3, and HOBBIT, Table 3: tasks",
  "line: which of four lines of the test text follows six others (by likelihood for each token; guessing gets 25 %). "
    .. "word: which word comes next in the middle of a line (exact match). Others are published data. Against the "
    .. "checkpoint; a task that it does no better than by chance is not judged. Fate: INT4, of each layer the quarter "
    .. "of the experts INT2 that calibration and a prompt's tokens before its block of 64 took least, on the slower "
    .. "machine mispredicted ones, too. HOBBIT: half of the experts cached, thresholds of the bundle.",
  name = "tasks", records = tasks.records, given = given,
  columns = { { "task", "{task}" }, { "rows", "{samples}" }, { "experts", "{experts}" }, { "score, %", "{value:1%}" },
    { "points", "{value - reference:1%}" }, page.LOSS, page.INTERVAL },
}

return tasks
