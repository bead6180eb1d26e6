-- boolq: yes or no to a question about a passage (Clark et al., 2019). Rows of the Hub's aps/super_glue, boolq (passage,
-- question, label 0 or 1), of google/boolq (answer true or false), or of LLM-Adapters (instruction, answer), which have no
-- passage: figures of those are not comparable. Prompt and choices are those of boolq in lm-evaluation-harness 0.4.13;
-- without a passage its line is left out.
local instruction = require("instruction")
return {
  name = "boolq",
  metric = "accuracy",
  row = function(row)
    local question = instruction.between(row, "true or false, question: ", "\n\nAnswer format: ") or row.question
    local label = row.label
    if label == nil then label = (row.answer == true or row.answer == "true") and 1 or 0 end
    return {
      passage = row.passage and row.passage .. "\n" or "",
      question = row.passage and question or (question:gsub("%?$", "")),
      label = label,
    }
  end,
  prompt = "{passage}Question: {question}?\nAnswer:",
  choices = {
    texts = { "no", "yes" },
    text = " {choice}",
    label = "{label}",
  },
}
