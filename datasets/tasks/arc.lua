-- arc: grade-school science questions (Clark et al., 2018), ARC-Easy and ARC-Challenge. Rows of the Hub's allenai/ai2_arc
-- (question, choices with text and label, answerKey) or of LLM-Adapters (instruction, answer). Prompt and choices are
-- those of arc_easy and arc_challenge in lm-evaluation-harness 0.4.13.
local instruction = require("instruction")
return {
  name = "arc",
  metric = "accuracy",
  row = function(row)
    local question, choices, label = instruction.question(row)
    if question then return { question = question, choices = choices, label = label } end
    return {
      question = row.question,
      choices = row.choices.text,
      label = instruction.place(row.choices.label, row.answerKey),
    }
  end,
  prompt = "Question: {question}\nAnswer:",
  choices = {
    field = "choices",
    text = " {choice}",
    label = "{label}",
  },
}
