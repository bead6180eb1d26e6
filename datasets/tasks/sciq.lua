-- sciq: science exam questions with a text (Welbl et al., 2017). Rows of the Hub's allenai/sciq (question, support,
-- distractor1 to 3, correct_answer) or of T0's prompts (prompt, completion). Prompt and choices are those of sciq in
-- lm-evaluation-harness 0.4.13. The right choice is the last one, as on the Hub; of T0's rows a few list one choice twice
-- and the right one not at all.
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
      if choice ~= right and not seen[choice] then choices[#choices + 1] = choice end
      seen[choice] = true
    end
    choices[#choices + 1] = right
    return { question = question, support = (support:gsub("^%s+", "")), choices = choices, label = #choices - 1 }
  end,
  prompt = "{support}\nQuestion: {question}\nAnswer:",
  choices = {
    field = "choices",
    text = " {choice}",
    label = "{label}",
  },
}
