-- A report: one HTML page that needs nothing beside itself, whose tables and charts also stand beside it as TSV.
local chart = require "chart"
local claims = require "claims"
local joins = require "joins"
local template = require "template"

local page = {}
page.__index = page

-- Columns that many tables have.
page.LOSS = "loss, %: {loss:2%}"
page.INTERVAL = "its interval, %: {loss_low:2%} to {loss_high:2%}"
page.MISSES = "misses, %: {miss_rate:1%}"
page.PROMPT = "prompt, ms: {ttft_ms:2}"
page.TOKEN = "ms a token: {tpot_ms_median:3}"
page.SPEED = "tokens a second: {1000 / tpot_ms_median:0}"
page.WAITS = "waits, ms a token: {stall_ms:3}"
page.HITS = "hits, %: {hit_rate:1%}"
page.READS = "KiB a token: {bytes_per_token:1K}"

function page:put(html, ...) table.insert(self.pieces, select("#", ...) > 0 and html:format(...) or html) end
-- A heading (h3) or a paragraph (p), unless there is nothing to say.
function page:say(tag, text)
  if text ~= "" then self:put("<%s>%s</%s>\n", tag, moec.text(text), tag) end
end

-- Beside the page.
function page:write(name, text) moec.write(("%s/%s.tsv"):format(self.folder, name), text) end

-- ---- tables ----

-- Numbers stand to the right, words to the left, and many words on several lines. A letter in the "to" of an interval
-- is no word; an empty cell is.
local function class_of(rows, column)
  local has_words, longest = false, 0
  for r = 2, #rows do
    local cell = rows[r][column]
    has_words = has_words or cell == "" or cell:gsub("to ", ""):find("%a") ~= nil
    longest = math.max(longest, #cell)
  end
  return not has_words and "" or longest > 24 and "words" or "word"
end

-- Writes rows of cells, headings first, to the page and beside it as SAMPLE_NAME.tsv.
local function put_rows(self, name, rows)
  local lines, classes = {}, {}
  for r, row in ipairs(rows) do
    for c, cell in ipairs(row) do row[c] = cell:gsub("[\t\n]", " ") end
    lines[r] = table.concat(row, "\t") .. "\n"
  end
  for c = 1, #rows[1] do classes[c] = class_of(rows, c) end
  self:write(self.sample.name .. "_" .. name, table.concat(lines))
  self:put(moec.table(rows, classes))
end

-- Cells by the columns of a table, then what is given.
local function cells_of(entry, records, scope, sample)
  local rows = { {} }
  for c, column in ipairs(entry.columns) do
    local heading, cell = column:match("^(.-): ({.*)$")
    rows[1][c] = template.fill(heading, scope)
    for r, each in ipairs(records) do
      rows[r + 1] = rows[r + 1] or {}
      rows[r + 1][c] = template.cell(cell, template.scope(each, scope))
    end
  end
  local given = type(entry.given) == "function" and entry.given(sample) or entry.given or {}
  return table.move(given, 1, #given, #rows + 1, rows)
end

-- ---- claims ----

local WORDS = {
  goals = { reach = "to reach", yes = "reached", no = "not reached" },
  findings = { reach = "the paper", yes = "agrees", no = "does not agree" },
}

-- Figures to reach (kind "goals") or sentences of a paper ("findings"), as they were judged.
local function put_claims(self, kind, heading, found)
  local rows = { { "figure", WORDS[kind].reach, "measured", "", "remarks" } }
  for _, claim in ipairs(found) do
    if claim.verdict ~= "not measured" or self.shows_unmeasured then
      local verdict = WORDS[kind][claim.verdict] or claim.verdict
      table.insert(rows, { claim.figure, claim.paper, claim.ours, verdict, claim.why })
    end
  end
  self:say("h3", heading)
  put_rows(self, kind, rows)
end

local function list_claims(found, verdict, opening)
  local texts = {}
  for _, claim in ipairs(found) do
    local why = claim.why ~= "" and ": " .. claim.why or ""
    if claim.verdict == verdict then table.insert(texts, ("%s (%s%s)"):format(claim.figure, claim.ours, why)) end
  end
  return #texts > 0 and moec.text(opening .. table.concat(texts, "; ")) .. ". " or ""
end

-- How many figures to reach are reached, with a link to the sample's part.
local function put_score(self, sample)
  local n_reached = claims.count(sample.goals, "yes")
  local n_measured = n_reached + claims.count(sample.goals, "no")
  local rest = self.shows_unmeasured and (", %d were not measured"):format(#sample.goals - n_measured) or ""
  self:put('<p><a href="#%s">%s</a>: %d of %d figures to reach are reached%s.</p>\n', sample.name,
    moec.text(sample.title), n_reached, n_measured, rest)
end

-- ---- entries ----

-- Commas that are in no quotes become tabs, quotes go.
local function tsv_of(csv)
  return (('"' .. csv .. '"'):gsub('"([^"]*)"', function(bare) return (bare:gsub(",", "\t")) end))
end

local function put_entry(self, entry, record)
  local sample, records = self.sample, joins.value(entry.records, self.sample, record) or {}
  if #records == 0 and not records.handle then return end
  local values = joins.values(entry.of, sample, record)
  values.records = records
  local scope = template.scope(values, record, sample)
  local name = template.fill(entry.name, scope)
  self:say("h3", template.fill(entry[1], scope))
  self:say("p", template.fill(entry[2], scope))
  if entry.columns then put_rows(self, name, cells_of(entry, records, scope, sample)) end
  local charts = entry.charts and moec.profile_charts(records.handle, sample.name, entry.charts) or {}
  if entry.kind then charts[1] = moec.chart(chart.describe(entry, sample.name .. "_" .. name, records, scope)) end
  for _, one in ipairs(charts) do
    self:write(one.name, tsv_of(one.csv))
    self:put(one.html)
  end
end

-- Entries of the page, in their order, each of `records` as joins.value has them; without any it is left out. It may
-- have a heading, a paragraph, and is
--
--   a table    by `columns`, "heading: template of its cells", then rows that are `given` as text, called `name`
--   a chart    of `kind`, called `name`, as chart.lua tells
--   charts     of a profile's own report, by the beginning of their names
--
-- Texts may name what is in `of`, the records and the sample. A table with `each`, a list or the name of one in the
-- sample, holds entries that are made for all of it.
local function put_entries(self, entries, record)
  for _, entry in ipairs(entries or {}) do
    for _, one in ipairs(joins.each(entry.each, self.sample)) do put_entries(self, entry, one) end
    if not entry.each then put_entry(self, entry, record or {}) end
  end
end

-- ---- the page ----

-- What a sample says of the papers' sentences, all of them, and in words which agree, or how many.
local function judge(papers, sample)
  local all, numbers = {}, {}
  for p, paper in ipairs(papers) do
    local found = claims.judge(paper.findings, sample)
    local n_agree = claims.count(found, "yes")
    numbers[p] = (" %d of %d of %s"):format(n_agree, n_agree + claims.count(found, "no"), paper.name)
    for _, claim in ipairs(found) do claim.figure = (paper.prefix or "") .. claim.figure end
    table.move(found, 1, #found, #all + 1, all)
  end
  if #papers == 1 then
    return all, list_claims(all, "yes", "As in the paper: ") .. list_claims(all, "no", "Not as in the paper: ")
  end
  return all, moec.text("Of the papers' sentences that say by how much, or which is better, these agree with what was "
    .. "measured here:" .. table.concat(numbers, ",") .. ". Figures without a name are those of the first.")
end

local function put_sample(self, experiment, sample)
  local found, agreement = judge(experiment.papers, sample)
  self.sample = sample
  if sample.title then self:put('<section id="%s">\n<h2>%s</h2>\n', sample.name, moec.text(sample.title)) end
  self:say("p", sample.remark or "")
  self:put("<p>%s</p>\n", agreement)
  put_claims(self, "goals", "Figures to reach", sample.goals)
  put_claims(self, "findings", "What the paper" .. (#experiment.papers > 1 and "s say" or " shows")
    .. ", and what is seen here", found)
  for _, paper in ipairs(experiment.papers) do put_entries(self, paper.entries) end
  put_entries(self, experiment.entries)
  if sample.title then self:put("</section>\n") end
end

-- Writes FOLDER/report.html, whole or not at all, and says its name. An experiment has the `title` of its page, the
-- `goals` to reach, `papers` with findings and entries, and with a name and a prefix of their figures where they are
-- several, perhaps `entries` behind theirs and an `introduction`, and `read(folder, name)`, which returns its samples:
-- each with a name, results, and perhaps a title and a remark. Claims that were not measured are left out unless it
-- `shows_unmeasured`.
function page.report(experiment, folder, name)
  local self = setmetatable({ folder = folder, shows_unmeasured = experiment.shows_unmeasured, pieces = {} }, page)
  local samples = experiment.read(folder, name)
  for _, sample in ipairs(samples) do sample.goals = claims.judge(experiment.goals, sample) end
  for _, text in ipairs(experiment.introduction or {}) do
    self:say("p", template.fill(text, template.scope(table.unpack(samples))))
  end
  for _, sample in ipairs(experiment.introduction and samples or {}) do put_score(self, sample) end
  for _, sample in ipairs(samples) do put_sample(self, experiment, sample) end
  moec.page(folder .. "/report.html", experiment.title, table.concat(self.pieces))
  print(folder .. "/report.html")
end

return page
