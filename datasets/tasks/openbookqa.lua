-- openbookqa: questions about facts of elementary science (Mihaylov et al., 2018). Rows of the Hub's allenai/openbookqa
-- (question_stem, choices with text and label, answerKey) or of LLM-Adapters (instruction, answer). The prompt is the
-- question alone, as in openbookqa of lm-evaluation-harness 0.4.13.
local instruction = require("instruction")
return {
  name = "openbookqa",
  metric = "accuracy",
  row = function(row)
    local question, choices, label = instruction.question(row)
    if question then return { question = question, choices = choices, label = label } end
    return {
      question = row.question_stem,
      choices = row.choices.text,
      label = instruction.place(row.choices.label, (row.answerKey:gsub("^%s+", ""))),
    }
  end,
  prompt = "{question}",
  choices = {
    field = "choices",
    text = " {choice}",
    label = "{label}",
  },
}
