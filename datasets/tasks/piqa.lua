-- piqa: which of two ways reaches a goal (Bisk et al., 2020), JSON lines with goal, sol1, sol2. The labels (0 or 1) stand
-- in a file beside the data: those of valid.jsonl in valid-labels.lst.
return {
  name = "piqa",
  metric = "accuracy",
  rows = {
    labels = "-labels.lst",
  },
  prompt = "Question: {goal}\nAnswer:",
  choices = {
    texts = { "{sol1}", "{sol2}" },
    text = " {choice}",
    label = "{label}",
  },
}
