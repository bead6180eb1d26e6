-- A report: one HTML page that needs nothing beside itself, whose tables and charts also stand beside it as TSV.
local chart = require "chart"
local claims = require "claims"
local joins = require "joins"
local template = require "template"

local page = {}
page.__index = page

-- Columns that many tables have.
page.LOSS = { "loss, %", "{loss:2%}" }
page.INTERVAL = { "its interval, %", "{loss_low:2%} to {loss_high:2%}" }
page.PROMPT = { "prompt, ms", "{ttft_ms:2}" }
page.TOKEN = { "ms a token", "{tpot_ms_median:3}" }
page.SPEED = { "tokens a second", "{1000 / tpot_ms_median:0}" }
page.HITS = { "hits, %", "{hit_rate:1%}" }
page.READS = { "KiB a token", "{bytes_per_token / 1024:1}" }

-- Claims that were not measured are left out with `hides_unmeasured`.
function page.open(folder, hides_unmeasured)
  return setmetatable({ folder = folder, hides_unmeasured = hides_unmeasured, pieces = {} }, page)
end

-- Writes FOLDER/report.html, whole or not at all, and says its name.
function page:close(title)
  moec.page(self.folder .. "/report.html", title, table.concat(self.pieces))
  print(self.folder .. "/report.html")
end

function page:put(html, ...)
  table.insert(self.pieces, select("#", ...) > 0 and html:format(...) or html)
end

-- The sample whose part of the page comes next: names of its files begin with its name.
function page:begin(sample, title)
  self.sample = sample
  if title then self:put('<section id="%s">\n<h2>%s</h2>\n', sample.name, moec.text(title)) end
end

function page:heading(text) self:put("<h3>%s</h3>\n", moec.text(text)) end
function page:paragraph(text) self:put("<p>%s</p>\n", moec.text(text)) end

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

-- Cells by the columns, { heading, template of its cells }, of a table.
local function cells_of(one, records, record, sample)
  local rows = { {} }
  for c, column in ipairs(one.columns) do rows[1][c] = template.fill(column[1], template.scope(sample)) end
  for r, each in ipairs(records) do
    local scope = template.scope(each, record, sample)
    rows[r + 1] = {}
    for c, column in ipairs(one.columns) do rows[r + 1][c] = template.cell(column[2], scope) end
  end
  local given = type(one.given) == "function" and one.given(sample) or one.given or {}
  return table.move(given, 1, #given, #rows + 1, rows)
end

-- ---- claims ----

local VERDICTS = {
  goals = { yes = "reached", no = "not reached" }, findings = { yes = "agrees", no = "does not agree" },
}

-- Figures to reach (kind "goals") or sentences of a paper ("findings"), as they were judged.
function page:claims(kind, heading, found)
  local rows = { { "figure", kind == "goals" and "to reach" or "the paper", "measured", "", "remarks" } }
  for _, claim in ipairs(found) do
    if claim.verdict ~= "not measured" or not self.hides_unmeasured then
      local verdict = VERDICTS[kind][claim.verdict] or claim.verdict
      table.insert(rows, { claim.figure, claim.paper, claim.ours, verdict, claim.why })
    end
  end
  self:heading(heading)
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

-- One paragraph of what agrees with the paper and what does not.
function page:agreement(found)
  self:put("<p>%s%s</p>\n", list_claims(found, "yes", "As in the paper: "),
    list_claims(found, "no", "Not as in the paper: "))
end

-- How many figures to reach are reached, with a link to the sample's part.
function page:score(sample, title)
  local n_reached = claims.count(sample.goals, "yes")
  local n_measured = n_reached + claims.count(sample.goals, "no")
  self:put('<p><a href="#%s">%s</a>: %d of %d figures to reach are reached', sample.name, moec.text(title), n_reached,
    n_measured)
  self:put(self.hides_unmeasured and ".</p>\n" or (", %d were not measured.</p>\n"):format(#sample.goals - n_measured))
end

-- ---- charts ----

local function put_chart(self, entry, values, record, scope)
  local name = self.sample.name .. "_" .. template.fill(entry.name, scope)
  local html, tsv = moec.chart(chart.describe(entry, name, values, scope, record, self.sample))
  self:write(name, tsv)
  self:put(html)
end

-- Charts of a profile's own report whose names begin with one of these, in the report's order.
local function put_profile_charts(self, profile, beginnings)
  for _, one in ipairs(moec.profile_charts(profile.handle, self.sample.name, table.unpack(beginnings))) do
    self:write(one.name, one.tsv)
    self:put(one.html)
  end
end

local function put_entry(self, entry, record)
  local sample, records = self.sample, joins.value(entry.records, self.sample, record) or {}
  if #records == 0 and not records.handle then return end
  local values = joins.values(entry.of, sample, record)
  values.records = records
  local scope = template.scope(values, record, sample)
  if entry[1] then self:heading(template.fill(entry[1], scope)) end
  if entry[2] then self:paragraph(template.fill(entry[2], scope)) end
  if entry.columns then put_rows(self, template.fill(entry.name, scope), cells_of(entry, records, record, sample)) end
  if entry.kind then put_chart(self, entry, values, record, scope) end
  if entry.charts then put_profile_charts(self, records, entry.charts) end
end

-- Entries of the page, in their order, each of `records` as joins.value has them; without any it is left out. It may
-- have a heading, a paragraph, and is
--
--   a table    by `columns`, { heading, template of its cells }, then rows that are `given` as text, called `name`
--   a chart    of `kind`, called `name`, with a title, a caption and its source; axes have a column's name, a label and
--              an expression, whose strings are categories, `has_zero` and `is_whole`; `low` and `high` are expressions
--              of an interval, `rules` and `uprights` lines at an expression, with a word; `by` names series
--   charts     of a profile's own report, by the beginnings of their names
--
-- Texts may name what is in `of`, the records and the sample. A table with `each`, a list or the name of one in the
-- sample, holds entries that are made for all of it.
function page:add(entries, record)
  for _, entry in ipairs(entries) do
    for _, one in ipairs(joins.each(entry.each, self.sample)) do self:add(entry, one) end
    if not entry.each then put_entry(self, entry, record or {}) end
  end
end

return page
