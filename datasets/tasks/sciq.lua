-- sciq: science exam questions with a text (Welbl et al., 2017). Rows of the Hub's allenai/sciq (question, support,
-- distractor1 to 3, correct_answer) or of T0's prompts (prompt, completion). Prompt and choices are those of sciq in
-- lm-evaluation-harness 0.4.13. T0's rows have the choices in another order; a few list one twice and the right one not
-- at all: there it takes the place of the second.
return {
  name = "sciq",
  metric = "accuracy",
  row = function(row)
    if row.question then
      return {
        question = row.question,
        support = (row.support:gsub("^%s+", "")),
        choices = { row.distractor1, row.distractor2, row.distractor3, row.correct_answer },
        label = 3,
      }
    end
    local question, support, list = row.prompt:match(
      "^Q: (.-)\n\n\nRead this paragraph and choose the correct option from the provided answers:\n\n(.*)\n\n Choices:\n\n(.-)\n\n\nA:\n$")
    if not question then error("no question of T0's form") end
    local right, choices, seen = (row.completion:gsub("<|endoftext|>$", "")), {}, {}
    for choice in (list .. "\n\n"):gmatch("%- (.-)\n\n") do
      if not seen[choice] then choices[#choices + 1] = choice end
      seen[choice] = true
    end
    if not seen[right] then choices[#choices + 1] = right end
    local label
    for i, choice in ipairs(choices) do
      if choice == right then label = i - 1 end
    end
    return { question = question, support = (support:gsub("^%s+", "")), choices = choices, label = label }
  end,
  prompt = "{support}\nQuestion: {question}\nAnswer:",
  choices = {
    field = "choices",
    text = " {choice}",
    label = "{label}",
  },
}
