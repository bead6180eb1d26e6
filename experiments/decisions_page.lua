-- The report about decisions per token: three papers, and settings with a certificate. What was not measured does not
-- appear.
local claims = require "claims"
local goals = require "decisions"
local joins = require "joins"
local measures = require "decisions_measures"
local page = require "page"
local tasks = require "decisions_tasks"
local template = require "template"

-- Figures of the first stand without its name.
local PAPERS = {
  { name = "cache-conditional experts", prefix = "", findings = require "cache_prior",
    entries = require "cache_prior_page" },
  { name = "HOBBIT", prefix = "HOBBIT, ", findings = require "hobbit", entries = require "hobbit_page" },
  { name = "Fate", prefix = "Fate, ", findings = require "fate", entries = require "fate_page" },
}

local ENTRIES = {
  tasks.TABLE,
  { "Settings with a certificate",
    "What moec tune proved on one part of the calibration text, and what the same bundle and settings lose on the "
      .. "test text, which nothing had seen. Misses and bytes are the certificate's, with the settings and without.",
    name = "tunings", records = { over = "tunings" },
    columns = { { "tuning", "{name}" }, { "settings found", "{setting}" }, { "certificate, %", "{proven.loss:2%}" },
      { "its interval, %", "{proven.loss_low:2%} to {proven.loss_high:2%}" },
      { "on the test text, %", "{test.loss:2%}" }, { "its interval, %", "{test.loss_low:2%} to {test.loss_high:2%}" },
      { "within both intervals", "{test.loss and holds and 'yes' or 'no'}" },
      { "misses, %", "{proven.experts_missed / proven.experts_taken:1%}" },
      { "without, %", "{proven.without.experts_missed / proven.without.experts_taken:1%}" },
      { "KiB a token", "{proven.missed_bytes_per_token / 1024:1}" },
      { "without", "{proven.without.missed_bytes_per_token / 1024:1}" } } },
  { "Decoding on slow storage", "Bundles of the same certified loss in the same memory, LRU, each with the preloads "
    .. "that are fastest for it: all of the loss spent on bits, or half of it left to a route. Precisions start from "
    .. "experts of 4 bits with copies of 2.",
    name = "decoding",
    records = function(sample)
      local list = {}
      for _, one in ipairs(joins.cross { "rate", { 550, 50 }, "share", { 25, 50 }, "side", measures.SIDES }) do
        local side = measures.side(sample, one.side, one)
        if side then table.insert(list, setmetatable({ rate = one.rate, share = one.share }, { __index = side })) end
      end
      return list
    end,
    columns = { { "storage, MB/s", "{rate}" }, { "memory, % of the experts", "{share}" },
      { "decisions", "{side == 'static' and 'none, bits alone' or side}" }, { "preloads", "{predictor}" }, page.TOKEN,
      page.HITS, page.READS } },
}

-- Sentences of the papers, one paper after the other, and in words how many of each agree.
local function judge(sample)
  local all, words = {}, {}
  for p, paper in ipairs(PAPERS) do
    local found = claims.judge(paper.findings, sample)
    local n_agree = claims.count(found, "yes")
    words[p] = (" %d of %d of %s"):format(n_agree, n_agree + claims.count(found, "no"), paper.name)
    for _, claim in ipairs(found) do claim.figure = paper.prefix .. claim.figure end
    table.move(found, 1, #found, #all + 1, all)
  end
  return all, table.concat(words, ",")
end

local function put_sample(self, sample)
  local findings, agreement = judge(sample)
  self:begin(sample, sample.title)
  self:paragraph("Of the papers' sentences that say by how much, or which is better, these agree with what was "
    .. "measured here:" .. agreement .. ". Figures without a name are those of the first.")
  self:claims("goals", "Figures to reach", sample.goals)
  self:claims("findings", "What the papers say, and what is seen here", findings)
  for _, paper in ipairs(PAPERS) do self:add(paper.entries) end
  self:add(ENTRIES)
  self:put("</section>\n")
end

-- Every folder in the experiment's that has a model.json, in the order of their names.
local function read_samples(folder)
  local samples = {}
  for _, name in ipairs(moec.names(folder, "")) do
    if moec.json(folder .. "/" .. name .. "/model.json") then
      local sample = measures.read(folder, name)
      sample.title = template.fill("{name}: {family}, {top_k} of {n_expert} experts a token in {n_layer} layers",
        template.scope(sample))
      sample.goals = claims.judge(goals, sample)
      table.insert(samples, sample)
    end
  end
  if #samples == 0 then error("'" .. folder .. "' has no results of experiments/decisions.sh", 0) end
  return samples
end

return function(folder)
  local self, samples = page.open(folder, true), read_samples(folder)
  self:paragraph("Cache-conditional experts (Skliar et al., arXiv:2412.00099), HOBBIT (Tang et al., arXiv:2411.01433) "
    .. "and Fate (Fang et al., arXiv:2502.12224) on small models, with moec alone: losses of perplexity on text that "
    .. "nothing was tuned on, with 90 % intervals, and what misses a logical cache of each layer, LRU, empty at the "
    .. "beginning of each window. The papers' figures are of models of 14 to 47 billion parameters.")
  for _, sample in ipairs(samples) do self:score(sample, sample.title) end
  for _, sample in ipairs(samples) do put_sample(self, sample) end
  self:close("Decisions per token, measured")
end
