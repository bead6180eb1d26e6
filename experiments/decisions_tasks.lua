-- Tasks with all experts at one bitwidth and with decisions: Tables 2 and 3 of Fate, Table 3 of HOBBIT.
local page = require "page"

local tasks = {}

local CHANCE = "({ line = 0.25, mmlu = 0.25, hellaswag = 0.25, piqa = 0.5 })" -- what guessing gets; of others nothing

local TASK = "file:sub(1, -#side - 2)"

-- Scores with the experts of a side, TASK-SIDE.json, without a side that of the record; a task is done where the
-- checkpoint's is better than by chance.
local function scores(side, words)
  return { over = "tasks/*", with = { side = side, experts = words }, where = "file:sub(-#side - 1) == '-' .. side",
    let = { task = TASK, is_done = "reference - 2 * standard_error > (" .. CHANCE .. "[" .. TASK .. "] or 0)" } }
end

-- Those of a side, of the tasks that the checkpoint can do.
function tasks.side(side) return { over = scores(side), where = "is_done" } end

-- What they score, in words.
tasks.SCORES = "{list(tasks, 'true', '{task} {value:1%} instead of {reference:1%} %', ', ')}"

-- The paper's: model, rows, experts, score, points, loss and its interval.
local function given(model, experts, score, points) return { model, "", experts, score, points, "–", "–" } end

tasks.TABLE = {
  "Fate, Tables 2 and 3, and HOBBIT, Table 3: tasks",
  "line: which of four lines of the test text follows six others (by likelihood for each token; guessing gets 25 %). "
    .. "word: which word comes next in the middle of a line (exact match). Others are published data. Against the "
    .. "checkpoint; a task that it does no better than by chance is not judged. Fate: INT4, of each layer the quarter "
    .. "of the experts INT2 that calibration and a prompt's tokens before its block of 64 took least, on the slower "
    .. "machine mispredicted ones, too. HOBBIT: half of the experts cached, thresholds of the bundle.",
  name = "tasks", records = { by = "task", over = {
    { over = scores("int8", "original"),
      let = { value = "reference", loss = "0", loss_low = "0 / 0", loss_high = "0 / 0" } },
    scores("int8", "all experts INT8"), scores("int4", "all experts INT4"), scores("int2", "all experts INT2"),
    scores("fate-high", "Fate, faster machine"), scores("fate-low", "Fate, slower machine"),
    scores("hobbit-16-4", "HOBBIT, 16 bits and INT4"), scores("hobbit-8-2", "HOBBIT, INT8 and INT2") } },
  columns = { "task: {task}", "rows: {samples}",
    "experts: {experts}{experts == 'original' and not is_done and ', no better than by chance' or ''}",
    "score, %: {value:1%}", "points: {value - reference:1%}", page.LOSS, page.INTERVAL },
  given = { given("MMLU, the paper's Qwen1.5-MoE", "original", "59.6", "–"),
    given("", "all experts INT8", "59.6", "0"), given("", "all experts INT4", "59.4", "-0.2"),
    given("", "all experts INT2", "55.1", "-4.5"), given("", "Fate, faster machine", "59.7", "0.1"),
    given("", "Fate, slower machine", "58.4", "-1.2"),
    given("GSM8K, the paper's Qwen1.5-MoE", "original", "62.4", "–"),
    given("", "Fate, faster machine", "60.2", "-2.2"), given("", "Fate, slower machine", "59.9", "-2.5"),
    given("GSM8K, the paper's Mixtral-8x7B", "original", "52", "–"),
    given("", "HOBBIT, 16 bits and INT4", "51", "-1"), given("", "HOBBIT, INT8 and INT2", "51", "-1") },
}

return tasks
