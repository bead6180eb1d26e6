-- Tasks with all experts at one bitwidth and with decisions: Tables 2 and 3 of Fate, Table 3 of HOBBIT.
local joins = require "joins"
local page = require "page"

local tasks = {}

local CHANCE = { line = 0.25, mmlu = 0.25, hellaswag = 0.25, piqa = 0.5 } -- what guessing gets; of others nothing

-- Scores with the experts of a side, TASK-SIDE.json; a task is done where the checkpoint's is better than by chance.
local function scores(side, words, let)
  return { over = "tasks/*", where = "file:sub(" .. -#side - 1 .. ") == '-" .. side .. "'", let = let,
    with = {
      experts = words, task = function(record) return record.file:sub(1, -#side - 2) end,
      is_done = function(record)
        return record.reference - 2 * record.standard_error > (CHANCE[record.file:sub(1, -#side - 2)] or 0)
      end,
    } }
end

local SIDES = {
  scores("int8", "original", { value = "reference", loss = "0", loss_low = "0 / 0", loss_high = "0 / "
    .. "0", experts = "is_done and 'original' or 'original, no better than by chance'" }),
  scores("int8", "all experts INT8"), scores("int4", "all experts INT4"), scores("int2", "all experts INT2"),
  scores("fate-high", "Fate, faster machine"), scores("fate-low", "Fate, slower machine"),
  scores("hobbit-16-4", "HOBBIT, 16 bits and INT4"), scores("hobbit-8-2", "HOBBIT, INT8 and INT2"),
}

-- All of them, task by task.
local function by_task(sample)
  local all, ordered, is_known = joins.value(SIDES, sample), {}, {}
  for _, first in ipairs(all) do
    for _, record in ipairs(is_known[first.task] and {} or all) do
      if record.task == first.task then table.insert(ordered, record) end
    end
    is_known[first.task] = true
  end
  return ordered
end

-- Those of a side, of the tasks that the checkpoint can do.
function tasks.side(side)
  local done = scores(side)
  done.where = done.where .. " and is_done"
  return done
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
  name = "tasks", records = by_task, given = given,
  columns = { { "task", "{task}" }, { "rows", "{samples}" }, { "experts", "{experts}" }, { "score, %", "{value:1%}" },
    { "points", "{value - reference:1%}" }, page.LOSS, page.INTERVAL },
}

return tasks
